"""The numerical checks of an export, selected by the kind of family."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from headwaiter.package.manifest import Parity
from headwaiter_export.arrays import Arrays
from headwaiter_export.families.family import Family
from headwaiter_export.families.policy_decoder import PolicyDecoderFamily
from headwaiter_export.families.single_pass import SinglePassFamily
from headwaiter_export.families.text_decoder import TextDecoderFamily
from headwaiter_export.validation.policy_decoding import PolicyDecodingChecks
from headwaiter_export.validation.runtime import Runtime
from headwaiter_export.validation.single_pass import SinglePassChecks
from headwaiter_export.validation.text_decoding import TextDecodingChecks


class Checks(Protocol):
    """The checks of one family."""

    def check_parity(self, runtime: Runtime) -> Parity:
        """Compare the outputs of the fp32 graphs with the original model in torch."""

    def sample_outputs(self, runtime: Runtime, rng: np.random.Generator) -> Arrays:
        """Run the graphs on random inputs. Precisions are compared on these outputs.

        Names with the suffix `SINGLE_ROW` are the same outputs with each row run as its own batch. `TOKENS` and
        `TOP_ANSWERS` are the most probable tokens, classes or actions.
        """


def checks_for(family: Family) -> Checks:
    match family:
        case SinglePassFamily():
            return SinglePassChecks(family)
        case TextDecoderFamily():
            return TextDecodingChecks(family)
        case PolicyDecoderFamily():
            return PolicyDecodingChecks(family)
    raise TypeError(f"There are no checks for {type(family).__name__}.")

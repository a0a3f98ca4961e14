"""Self-contained HTML reports: text, tables and SVG plots on one page without external resources."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

import matplotlib
from matplotlib import pyplot

GOOD, BAD = "#2fb59f", "#c0392b"
_STYLE: Any = {"font.size": 9, "text.color": "#222222", "axes.edgecolor": "#bbbbbb", "svg.fonttype": "none"}
_SIZE = 7.2, 3.0

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{heading}</title>
<style>
 body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 66rem; margin: 2rem auto; padding: 0 1rem }}
 h1 {{ font-size: 1.5rem; margin-bottom: .2rem }} h2 {{ font-size: 1.05rem; margin: 1.8rem 0 .4rem }}
 .verdict {{ border-left: 5px solid {colour}; background: #f7f7f4; padding: .7rem 1rem; font-size: 1.05rem }}
 .plots {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(28rem, 1fr)); gap: 0 1.5rem }}
 svg {{ width: 100%; height: auto }} .wide {{ overflow-x: auto }} .dim {{ color: #777 }}
 table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem }}
 th, td {{ text-align: right; padding: .2rem .7rem; border-bottom: 1px solid #e6e6e6; white-space: nowrap }}
 th:first-child, td:first-child {{ text-align: left }} th {{ font-weight: 600 }}
</style>
<h1>{heading}</h1>
<p class="dim">{subtitle}</p>
<p class="verdict">{verdict}</p>
{body}
</html>
"""


def render_page(heading: str, subtitle: str, verdict: str, body: Iterable[str], *, good: bool) -> str:
    """Render a page; `body` holds HTML fragments, all other arguments are plain text and escaped."""
    colour = GOOD if good else BAD
    fields = {name: escape(text) for name, text in (("heading", heading), ("subtitle", subtitle), ("verdict", verdict))}
    return _PAGE.format(colour=colour, body="\n".join(body), **fields)


def paragraph(title: str, text: str) -> str:
    return f"<h2>{escape(title)}</h2><p>{escape(text)}</p>"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(format_value(value))}</td>" for value in row) + "</tr>" for row in rows
    )
    return f'<h2>{escape(title)}</h2><div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def plots(drawings: Mapping[str, Callable[[Any], None]]) -> str:
    """Render drawing functions by title; each is called with the axes to draw on."""
    sections = (f"<section><h2>{escape(title)}</h2>{_svg(draw)}</section>" for title, draw in drawings.items())
    return f'<div class="plots">{"".join(sections)}</div>'


def format_value(value: Any) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "NO"
        case float():
            return f"{value:,.2f}" if abs(value) < 10 else f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
    return str(value)


def _svg(draw: Callable[[Any], None]) -> str:
    matplotlib.use("Agg")
    with pyplot.rc_context(_STYLE):
        figure, axes = pyplot.subplots(figsize=_SIZE)
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e6e6")
        axes.set_axisbelow(True)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        figure.tight_layout()
        file = io.StringIO()
        figure.savefig(file, format="svg")
        pyplot.close(figure)
    return file.getvalue()[file.getvalue().index("<svg") :]

"""Chinese benchmark sentences of very different lengths, assembled from clauses with a seeded random generator."""

from __future__ import annotations

import random

_TIMES = [
    "",
    "",
    "今天早上",
    "去年冬天",
    "上个星期三",
    "下午三点钟",
    "在过去的十年里",
    "刚才",
    "每天晚上",
    "从明年一月开始",
]
_SUBJECTS = [
    "我们公司",
    "那位年轻的医生",
    "火车站的工作人员",
    "他的妹妹",
    "新来的工程师",
    "这家小餐馆的老板",
    "政府",
    "老师和学生们",
    "她",
]
_PREDICATES = [
    "修好了服务器",
    "发现了一个严重的错误",
    "决定推迟会议",
    "把报告发给了所有的客户",
    "在图书馆里读了两个小时的书",
    "宣布了一项帮助失业工人的新计划",
    "没有回答任何问题",
    "从北京搬到了一个海边的小城市",
    "学会了用三种语言写信",
    "买了一台便宜又好用的电脑",
]
_CAUSES = [
    "",
    "",
    "因为网络连接非常不稳定",
    "虽然外面下着大雨",
    "尽管预算只剩下百分之十五",
    "由于机场取消了所有的航班",
    "如果没有人反对的话",
]
_CONSEQUENCES = [
    "",
    "",
    "但是问题还没有完全解决",
    "所以大家都很高兴",
    "并且打算下个月再试一次",
    "结果比预期的要好得多",
    "而邻居们对此一无所知",
]
_ENDINGS = ["。", "。", "。", "！"]


def sentences(count: int, seed: int = 20) -> list[str]:
    """Return `count` distinct sentences; the same seed gives the same sentences."""
    rng = random.Random(seed)
    unique: dict[str, None] = {}
    while len(unique) < count:
        parts = [
            rng.choice(_CAUSES),
            rng.choice(_TIMES) + rng.choice(_SUBJECTS) + rng.choice(_PREDICATES),
            rng.choice(_CONSEQUENCES),
        ]
        unique["，".join(part for part in parts if part) + rng.choice(_ENDINGS)] = None
    return list(unique)

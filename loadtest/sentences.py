"""Chinese sentences for benchmarks, of very different lengths: clauses of our own, put together by a seeded draw."""

from __future__ import annotations

import random

_WHEN = [
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
_WHO = [
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
_DID = [
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
_BECAUSE = [
    "",
    "",
    "因为网络连接非常不稳定",
    "虽然外面下着大雨",
    "尽管预算只剩下百分之十五",
    "由于机场取消了所有的航班",
    "如果没有人反对的话",
]
_THEN = [
    "",
    "",
    "但是问题还没有完全解决",
    "所以大家都很高兴",
    "并且打算下个月再试一次",
    "结果比预期的要好得多",
    "而邻居们对此一无所知",
]
_END = ["。", "。", "。", "！"]


def sentences(count: int, seed: int = 20) -> list[str]:
    """Different sentences, the same ones for the same seed."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        parts = [rng.choice(_BECAUSE), rng.choice(_WHEN) + rng.choice(_WHO) + rng.choice(_DID), rng.choice(_THEN)]
        found["，".join(part for part in parts if part) + rng.choice(_END)] = None
    return list(found)

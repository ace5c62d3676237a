"""What all ranks come to, from what each has said; and which operations travel together."""

from __future__ import annotations

import pytest
import torch

from elche.collectives.fusion import batches, num_bytes
from elche.collectives.negotiate import Failed, Joined, Negotiation, Ready
from elche.collectives.requests import News, Request, decode, encode


def wants(*names, kind="allreduce", **said):
    return News(tuple(Request(kind, name, ("float32",), ((3,),), op="Sum", **said) for name in names))


def names(verdicts):
    return [verdict.name for verdict in verdicts]


def test_news_travel_as_bytes():
    news = News(
        (Request("alltoall", "x", ("bool",), ((0, 2),), "", 3, 0.1, float("inf"), (1, 2), "no"),),
        ("old",),
        ("twice",),
        True,
    )
    assert decode(encode(news)) == news
    assert encode(decode(encode(news))) == encode(news)
    assert decode(encode(News())) == News()


def test_an_operation_is_ready_when_all_have_come_to_it():
    negotiation = Negotiation(3)
    assert negotiation.advance([wants("a", "b"), wants("b"), News()]) == []
    assert negotiation.missing("a") == [1, 2]
    assert negotiation.missing("b") == [2]
    assert names(negotiation.advance([News(), wants("a"), wants("b")])) == ["b"]
    (ready,) = negotiation.advance([News(), News(), wants("a")])
    assert isinstance(ready, Ready)
    assert (ready.name, sorted(ready.parts)) == ("a", [0, 1, 2])
    assert negotiation.advance([News()] * 3) == []


def test_the_order_is_that_of_the_lowest_rank_which_spoke_first():
    assert names(Negotiation(2).advance([wants("b", "a", "c"), wants("c", "b", "a")])) == ["b", "a", "c"]
    negotiation = Negotiation(2)
    negotiation.advance([News(), wants("z", "y")])
    assert names(negotiation.advance([wants("x", "y", "z"), wants("x")])) == ["z", "y", "x"]


def test_who_has_joined_is_not_waited_for():
    negotiation = Negotiation(3)
    join = News((Request("join", "join"),))
    assert negotiation.advance([wants("a"), join, wants("a")])[0].parts.keys() == {0, 2}
    (failed,) = negotiation.advance([wants("b", root=1), News(), wants("b", root=1)])
    assert failed == Failed("b", failed.parts, "root rank 1 of allreduce 'b' has joined", True)
    assert negotiation.advance([join, News(), News()]) == []
    assert negotiation.advance([News(), News(), join]) == [Joined(2)]
    assert negotiation.advance([wants("a"), News(), wants("a")]) == []  # rank 1 is back


def test_an_operation_that_one_rank_waited_for_too_long_fails_for_all_that_came():
    negotiation = Negotiation(4)
    negotiation.advance([wants("a"), News(), wants("a"), News()])
    (failed,) = negotiation.advance([News(expired=("a",)), News(), News(expired=("a",)), News()])
    assert sorted(failed.parts) == [0, 2]
    assert failed.why == "allreduce 'a' waited too long for ranks [1, 3]; ranks [0, 2] had come"
    assert not failed.differs
    assert negotiation.advance([News(), wants("a"), News(), News()]) == []
    assert negotiation.missing("a") == [0, 2, 3]


def test_an_operation_that_expires_as_the_last_comes_is_done():
    negotiation = Negotiation(2)
    negotiation.advance([wants("a"), News()])
    assert names(negotiation.advance([News(expired=("a",)), wants("a")])) == ["a"]
    assert negotiation.advance([News(expired=("a",)), News(doubled=("a",))]) == []


def test_a_refusal_is_told_once_all_have_come():
    negotiation = Negotiation(2)
    assert negotiation.advance([wants("a", refusal="bad"), News()]) == []
    (failed,) = negotiation.advance([News(), wants("a")])
    assert failed.why == "rank 0 refused 'a': bad"


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ({"op": "Max"}, {}, "Mismatched reduce operations of 'x': rank 0: Max; rank 1: Sum"),
        ({"shapes": ((1,),)}, {}, "Mismatched allreduce tensor shapes of 'x': rank 0: [1]; rank 1: [3]"),
        ({"shapes": ((),)}, {}, "Mismatched allreduce tensor shapes of 'x': rank 0: []; rank 1: [3]"),
        ({"kind": "barrier"}, {}, "Mismatched operations of 'x': rank 0: barrier; rank 1: allreduce"),
        ({"root": 1}, {"root": 0}, "Mismatched allreduce root ranks of 'x': rank 0: 1; rank 1: 0"),
    ],
)
def test_differences_are_named(one, other, why):
    (part,) = wants("x").requests
    news_w = [News((part._replace(**said),)) for said in (one, other)]
    (failed,) = Negotiation(2).advance(news_w)
    assert (failed.why, failed.differs) == (why, True)


def ready(name, *, size=3, kind="allreduce", dtype="float32", **said):
    return Ready(name, {0: Request(kind, name, (dtype,), ((size,),), **{"op": "Sum", **said})})


def test_bytes_are_counted():
    request = Request("allreduce", "x", ("float32", "bool", "bfloat16"), ((3, 5), (), (7, 0)))
    assert num_bytes(request) == 61
    assert num_bytes(Request("barrier", "x")) == 0
    assert torch.bool.itemsize == 1


def test_alike_operations_travel_together_and_others_alone():
    one = [
        ready("a"),
        ready("max", op="Max"),
        ready("b", dtype="int64"),
        ready("scaled", prescale=0.5),
        ready("adasum", op="Adasum"),
        ready("adasum 2", op="Adasum"),
        ready("to all", kind="alltoall", op=""),
        ready("to all 2", kind="alltoall", op=""),
        ready("c"),
    ]
    assert [names(batch) for batch in batches(one)] == [
        ["a", "b", "c"],
        ["max"],
        ["scaled"],
        ["adasum"],
        ["adasum 2"],
        ["to all"],
        ["to all 2"],
    ]


def test_a_batch_is_no_larger_than_the_buffer():
    found = batches([ready(name, size=10) for name in "abcde"], most_bytes=80)
    assert [names(batch) for batch in found] == [["a", "b"], ["c", "d"], ["e"]]
    assert [names(batch) for batch in batches([ready("x", size=100)], most_bytes=80)] == [["x"]]
    assert batches([]) == []

"""Sums that begin in backward: the same bits as ever, whatever the script does to its gradients."""

from __future__ import annotations

import threading

import pytest
import torch
import training_rig as rig
from early_rig import DATA, backward, clamp_data_, same_on_gpus, scale_, small_buckets, train, train_here  # noqa: F401
from fake_gpus import SIDE, STREAM, FakeGpus

import elche
from elche.training.early import MOST_FALLEN
from elche.world import current


def sums_of(gpus, rank):
    """Return each sum of a rank as (whether it is in place, its stream)."""
    calls = [call for call in gpus.cupys[rank].calls if call[0] == "allReduce"]
    return [(call[2] == call[3], call[7]) for call in calls]


EARLY, REST, TOGETHER = (True, SIDE), (False, SIDE), (False, STREAM)


def test_buckets_go_while_backward_goes_on(monkeypatch):
    expected = train()[0]
    gpus, seen = FakeGpus(monkeypatch), [[], [], []]

    def at_backward(optimizer, model, batch):
        optimizer.zero_grad()
        rank = current().comm.rank
        made = lambda: len(gpus.calls(rank, "allReduce"))  # noqa: E731
        begun = made()
        loss = rig.squared(model, batch)
        hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _: seen[rank].append(made() - begun))
            for parameter in model.parameters()
        ]
        loss.backward()
        for hook in hooks:
            hook.remove()

    rig.assert_equal(expected, *train(go_backward=at_backward))
    assert seen[0][:8] == [0] * 8, "the first window's batches: nothing is known of the ranks yet"
    assert seen[0][8:12] == [1, 2, 3, 4], "one bucket after the other, as their gradients come"
    assert sums_of(gpus, 0)[:8] == [TOGETHER] * 4 + [EARLY] * 4
    assert sums_of(gpus, 1)[:8] == [TOGETHER] * 4 + [REST] * 4, "no batch in its second window"


def test_in_other_batches_and_on_cpus_there_is_no_hook(monkeypatch):
    num_hooks = []
    register = torch.Tensor.register_post_accumulate_grad_hook

    def counted(parameter, hook):
        num_hooks.append(current().comm.rank)
        return register(parameter, hook)

    monkeypatch.setattr(torch.Tensor, "register_post_accumulate_grad_hook", counted)
    train()
    assert num_hooks == []
    FakeGpus(monkeypatch)
    train()
    # After the first window: six with a batch of rank 0's, four with one of rank 1's, five of rank 2's.
    assert [num_hooks.count(rank) for rank in range(3)] == [4 * 6, 4 * 4, 4 * 5]


def negate_one_(optimizer, model):
    model[0].bias.grad.data.neg_()


def replace_(optimizer, model):
    model[2].weight.grad = torch.full_like(model[2].weight, 0.5)


def take_away_(optimizer, model):
    model[2].bias.grad = None


CHANGES = [scale_, clamp_data_, negate_one_, replace_, take_away_]


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_script_changes_after_backward_counts(change, monkeypatch):
    gpus = same_on_gpus(monkeypatch, lambda: train(before_step=change))
    again = [stream for _, stream in sums_of(gpus, 0)].count(STREAM)
    assert again >= 4 * 2, "all were summed again"


def test_a_change_in_one_window_on_one_rank_makes_all_sum_again(monkeypatch):
    def once(optimizer, model):
        if current().comm.rank == 2 and optimizer.window.index == 2:
            scale_(optimizer, model)

    gpus = same_on_gpus(monkeypatch, lambda: train(before_step=once))
    for rank in range(3):
        together = [stream == STREAM for _, stream in sums_of(gpus, rank)]
        windows = [together[k : k + 4] for k in range(0, len(together), 4)]
        assert [all(window) for window in windows] == [True, False, False, True, *[False] * 4]


def twice(optimizer, model, batch):
    """Backward in two halves."""
    optimizer.zero_grad()
    x, y = batch
    (rig.squared(model, (x[:1], y[:1])) / 2).backward()
    (rig.squared(model, (x[1:], y[1:])) / 2).backward()


def sometimes_partly(optimizer, model, batch):
    """A branch of the model that not every batch takes: its parameters have no gradient then."""
    optimizer.zero_grad()
    x, y = batch
    first = model[0](x) if x[0, 0] > 0 else x @ torch.ones(3, 4)
    (model[2](first.tanh()) - y).square().mean().backward()


def last_layer_first(optimizer, model, batch):
    """Two losses, the first of which is of the last layer only."""
    optimizer.zero_grad()
    (model[2](torch.ones(4)) - 1).square().sum().backward()
    rig.squared(model, batch).backward()


@pytest.mark.parametrize("go_backward", [twice, sometimes_partly, last_layer_first])
def test_however_it_goes_backward(go_backward, monkeypatch):
    same_on_gpus(monkeypatch, lambda: train(go_backward=go_backward))


def test_a_script_that_always_changes_its_gradients_is_guessed_no_more(monkeypatch):
    gpus = FakeGpus(monkeypatch)
    train(before_step=scale_)
    for rank in range(3):
        sums = sums_of(gpus, rank)
        assert sums.count(EARLY) == 4 * MOST_FALLEN
        assert sums[-4:] == [REST] * 4, "what is begun at step() stands"


def test_where_one_rank_cannot_go_on_no_sum_is_left_waiting_on_the_others_devices(monkeypatch):
    gpus = FakeGpus(monkeypatch)

    def spoil(optimizer, model):
        if current().comm.rank == 2 and optimizer.window.index == 2:
            model[0].bias.grad.fill_(torch.nan)

    def script(rank):
        with pytest.raises(elche.errors.NonFiniteError, match="rank 2"):
            train_here(before_step=spoil, nonfinite="raise")
        return gpus.calls(rank, "abort")

    assert rig.ranks(3, script)[:2] == [["abort"]] * 2


@pytest.mark.filterwarnings("ignore:batches with inf or nan:RuntimeWarning")
def test_a_batch_that_is_left_out_counts_for_nothing(monkeypatch):
    bad = [(x * torch.inf if index in (23, 55) else x, y) for index, (x, y) in enumerate(DATA)]
    same_on_gpus(monkeypatch, lambda: train(data=bad))
    assert all(tensor.isfinite().all() for tensor in train(data=bad)[0].values())


def test_a_scaler_divides_in_step(monkeypatch):
    def script(rank):
        model, scaler = rig.mlp(), torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer, loader = rig.distribute(model, rig.sgd(model), DATA)
        for batch in loader:
            optimizer.zero_grad()
            scaler.scale(rig.squared(model, batch)).backward()
            scaler.step(optimizer)
            scaler.update()
        return rig.state_of(model)

    same_on_gpus(monkeypatch, lambda: rig.ranks(3, script))


def test_between_two_optimizers_nothing_begins_early(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 1))
    gpus = FakeGpus(monkeypatch)

    def script(rank):
        models = [rig.mlp() for _ in range(2)]
        both = [rig.distribute(model, rig.sgd(model), DATA) for model in models]
        for model, (optimizer, loader) in [*zip(models, both, strict=True)] * 2:
            rig.loop(model, optimizer, loader)

    rig.ranks(2, script)
    num_alone = 4 * 9  # sums of the first one's epoch, 26 batches by three
    for rank in range(2):
        assert EARLY in sums_of(gpus, rank)[:num_alone]
        assert EARLY not in sums_of(gpus, rank)[num_alone:]


def test_a_script_that_waits_for_its_gpu_hears_of_a_lost_rank(monkeypatch):
    """The others are gone while it waits for a sum with them, in CUDA: a thread aborts that."""
    gpus, waiting = FakeGpus(monkeypatch), threading.Event()

    class GoneError(Exception):
        pass

    def watch():
        if waiting.is_set():
            raise elche.errors.CommError("processes [1] are gone")

    def wait_in_cuda(optimizer, model, batch):
        rank, is_last = current().comm.rank, optimizer.window.index == 1
        if rank == 1 and is_last:
            waiting.wait(10)
            raise GoneError
        backward(optimizer, model, batch)
        if rank == 0 and is_last:
            current().comm.watch = watch
            waiting.set()
            is_done = gpus.cupy(0).mark()
            while not is_done():  # without an abort: until the test's time is up
                threading.Event().wait(0.001)
            raise GoneError

    rig.fix_counts(monkeypatch, (1, 1))
    with pytest.raises(GoneError):
        train(2, wait_in_cuda)
    assert gpus.calls(0, "abort") == ["abort"]

#!/usr/bin/python3
"""Golden numbers of meta learning: `python3 tests/golden/meta.py OUT` writes OUT/meta_CASE_OPTIMIZER/*.npy and manifest.txt.

    tar c --sort=name --owner=0 --group=0 --mtime=@0 -C OUT . | zstd -19 --long=27 -o tests/golden/meta.tar.zst

First-order MAML (Finn, Abbeel, Levine 2017, algorithm 2 and section 5.2) of the models and batches of models.py. The samples of a batch that have
one first id in the task's field are a task, those with none together, in the order of their first samples; the first half of a task's samples,
rounded down, is its support, the others are its query. A copy of the whole model makes INNER_STEPS steps of torch's SGD on its support; its gradients
on the query, as torch's autograd has them at the adapted weights, are averaged over the tasks and given to the model's own optimizer. `adapted` is
what the copies say of the first batch's queries, task by task.
"""
import argparse
import copy
import math

import numpy as np
import torch

import models
from models import BATCH, DIM, LR, MARGIN, N_STEPS, NUMERIC, ROWS, WEIGHTS, Case, Model, draw_batches, tolerance

INNER_LR, INNER_STEPS = 0.3, 2
FIELDS = {"deepfm": 0, "dcnv2_tasks": 1}  # of the task: 5 tasks, some of which have one sample; and up to 24, and samples without one


def tasks_of(bags, field):
    found = {}
    for sample, ids in enumerate(bags[field]):
        found.setdefault(ids[0] if len(ids) else None, []).append(sample)
    return list(found.values())


def loss_of(model, batch, samples, weights, dtype):
    x, y, bags = batch
    z = model(torch.from_numpy(x[samples]).to(dtype), [[field[s] for s in samples] for field in bags])
    y = torch.from_numpy(y[samples]).to(dtype)
    return sum(w * torch.nn.functional.binary_cross_entropy_with_logits(z[:, k], y[:, k]) for k, w in enumerate(weights)), z


def adapt(model, batch, samples, weights, dtype):
    """A copy of the model after its inner steps, and the query."""
    own, half = copy.deepcopy(model), len(samples) // 2
    own.margin = math.inf
    inner = torch.optim.SGD(own.parameters(), lr=INNER_LR)
    for _ in range(INNER_STEPS if half else 0):
        inner.zero_grad()
        loss_of(own, batch, samples[:half], weights, dtype)[0].backward()
        inner.step()
    own.zero_grad()
    return own, samples[half:]


def meta_gradient(model, batch, field, weights, dtype):
    """Sets the model's gradients; the loss, and the queries' probabilities."""
    tasks, losses, probs = tasks_of(batch[2], field), [], []
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for samples in tasks:
        own, query = adapt(model, batch, samples, weights, dtype)
        loss, z = loss_of(own, batch, query, weights, dtype)
        loss.backward()
        for p, q in zip(model.parameters(), own.parameters()):
            p.grad += q.grad / len(tasks)
        model.margin = min(model.margin, own.margin)
        losses.append(loss.item())
        probs.append(torch.sigmoid(z).detach().numpy())
    return np.mean(losses), np.concatenate(probs)


def train(name, optimizer, seed, dtype=torch.float32, moved=None):
    rng = np.random.default_rng(seed)
    weights, field = WEIGHTS.get(name, [1]), FIELDS[name]
    batches, model = draw_batches(rng, len(weights)), Model(name, rng)
    start = {k: p.detach().numpy().copy() for k, p in model.named_parameters()}
    if moved is not None:
        with torch.no_grad():
            for p in model.parameters():
                p *= 1 + 1e-7 * torch.from_numpy(moved.uniform(-1, 1, size=p.shape).astype(np.float32))
    model = model.to(dtype)
    step = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[optimizer](model.parameters(), lr=LR[optimizer])
    out, losses = {}, []
    for i, batch in enumerate(batches):
        loss, probs = meta_gradient(model, batch, field, weights, dtype)
        if i == 0:
            x, _, bags = batch
            out["prob"] = np.squeeze(torch.sigmoid(model(torch.from_numpy(x).to(dtype), bags)).detach().numpy())
            out["adapted"] = np.squeeze(probs)
            out |= {"d_" + k: p.grad.numpy().copy() for k, p in model.named_parameters()}
        losses.append(loss)
        step.step()
    out["loss"] = np.array(losses)
    out |= {"after20_" + k: p.detach().numpy().copy() for k, p in model.named_parameters()}
    return out, start, batches, model.margin


def write(folder, name, optimizer):
    for seed in range(1, 1000):
        want, start, batches, margin = train(name, optimizer, seed)
        if margin > MARGIN / 4:
            break
    moved = np.random.default_rng(1)
    others = [train(name, optimizer, seed, torch.float64)[0]] + [train(name, optimizer, seed, moved=moved)[0] for _ in range(6)]
    case = Case(folder, f"meta_{name}_{optimizer}")
    for key, value in (("batch", BATCH), ("dense", NUMERIC), ("dim", DIM), ("steps", N_STEPS), ("seed", seed), ("optimizer", optimizer),
                        ("lr", LR[optimizer]), ("field", FIELDS[name]), ("inner_lr", INNER_LR), ("inner_steps", INNER_STEPS)):
        case.param(key, value)
    models.put_inputs(case, batches, start)
    for array, a in want.items():
        case.put(array, a, "expect", tolerance(a, [o[array] for o in others]), 1e-5)
    case.close()
    print(f"{name} {optimizer}: seed {seed}, pre-activations from {margin:.1e}")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("out", help="a folder that is not there yet")
    out = args.parse_args().out
    torch.set_num_threads(1)
    for name in FIELDS:
        for optimizer in LR:
            write(out, name, optimizer)


if __name__ == "__main__":
    main()

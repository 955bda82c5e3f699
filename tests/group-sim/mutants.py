#!/usr/bin/env python3
"""Does the simulation of a replica group find what it is there for? Each fault is put into a copy of server/cluster, and schedules
run until one breaks a promise.

    tests/group-sim/mutants.py [--schedules 2000] [NAME ...]
    tests/group-sim/mutants.py --texts       only whether the texts are there, as make lint does

The unchanged code goes first: in it nothing is to be found.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

# name, what it is, the text, what it becomes, ...
MUTANTS = [
    ("ack-too-early", "a record is acknowledged before the standby has it",
     "case GROUP_GATE_STANDBY: return g->received;", "case GROUP_GATE_STANDBY: return g->received + 1;"),
    ("ack-without-sync", "with ack durable, received is taken for durable",
     "g->config.ack == GROUP_ACK_DURABLE ? durable : received;", "received;"),
    ("no-seal", "a standby asks to take over without sealing",
     "g->role = GROUP_SEALED; g->follows = false;", "",
     "static void tick_sealed(struct group *g) { struct group_record r = g->record; "
     "if (!may_write(g) || g->revision != g->sealed_revision || !is_safe(g))",
     "static void tick_sealed(struct group *g) { struct group_record r = g->record; "
     "if (!may_write(g) || !is_safe(g))"),
    ("in-sync-before-waiting", "the record says in sync before acknowledgements wait",
     "g->waits = true; g->progress_ms = g->now_ms; g->wait_from = g->log.last;",
     "g->waits = false; g->progress_ms = g->now_ms; g->wait_from = g->log.last;"),
    ("in-sync-too-early", "the record says in sync before the standby has what was acknowledged alone",
     "if (g->received < g->wait_from || !may_write(g)) return;", "if (!may_write(g)) return;"),
    ("rejoin-too-far", "a rejoining member keeps one record too many",
     "return x->first == y->first ? (m < n ? m : n) : 0;",
     "return x->first == y->first ? (m < n ? m + 1 : n) : 0;"),
    ("rejoin-by-last-term", "a rejoining member looks at the last record alone",
     "const uint64_t m = end_of(a, i - 1), n = end_of(b, j - 1);", "const uint64_t m = a->last, n = b->last;"),
    ("patience-from-receiving", "a primary counts its patience from receiving the answer, not from sending what was answered",
     "if (m->sent_ms > g->answered_ms) g->answered_ms = m->sent_ms;", "g->answered_ms = g->now_ms;"),
    ("never-parked", "a primary whose standby is silent goes on answering",
     "return g->waits && (!g->is_answered || now_ms - g->answered_ms > GROUP_PARK_MS);",
     "return g->waits && !g->is_answered && now_ms == 0;"),
    ("ack-after-deposed", "a deposed primary acknowledges",
     "if (g->role != GROUP_PRIMARY || g->parked_revision || is_parked(g, now_ms)) return GROUP_GATE_CLOSED;",
     "if (g->parked_revision || is_parked(g, now_ms)) return GROUP_GATE_CLOSED;",
     "if (g->role != GROUP_DEPOSED) add_action(g, GROUP_RESTART); g->role = GROUP_DEPOSED;", ""),
    ("alone-before-transaction", "a primary stops waiting before its transaction",
     "if (!g->has_asked) { stop_waiting(g); /* nobody was told that it waits */ return; }",
     "if (!g->has_asked) { stop_waiting(g); return; } g->waits = false;"),
    ("alone-by-stale-record", "a primary stops waiting by what the record said before it asked",
     "if (!g->has_asked) { stop_waiting(g);", "if (!g->record.in_sync) { stop_waiting(g);"),
    ("promoted-out-of-sync", "a standby that is not in sync takes over",
     "return g->record.in_sync && g->log.history == g->record.history &&", "return g->log.history == g->record.history &&"),
    ("promoted-after-restart", "a standby that has restarted takes over with what its disk has",
     "(names_standby(g) && g->config.ack == GROUP_ACK_DURABLE && g->has_kept)", "names_standby(g)"),
    ("promoted-after-copy", "a standby with a new disk takes over by what it has copied so far",
     "g->has_kept = log->history != 0 && !log->is_partial;", "g->has_kept = true;", "g->is_rewinding = true; g->has_kept = false; g->log.is_partial = true;", "g->is_rewinding = true;"),
    ("promoted-unsynced", "with fsync a standby takes over before its disk has its log",
     "return !g->config.is_synced || g->durable >= g->log.last;", "return true;"),
    ("switched-unsynced", "with fsync a switch does not wait for the standby's disk",
     "(g->config.is_synced && g->standby_durable < g->log.last) ||", ""),
    ("served-during-switch", "a primary goes on while its transaction of a switch is under way",
     "if (g->role != GROUP_PRIMARY || g->parked_revision || is_parked(g, now_ms)) return GROUP_GATE_CLOSED;",
     "if (g->role != GROUP_PRIMARY || is_parked(g, now_ms)) return GROUP_GATE_CLOSED;"),
    ("returned-without-asking", "a restarted primary serves although its standby may have more",
     "return !g->record.in_sync || g->config.is_synced;", "return true;"),
    ("empty-disk", "a restarted primary serves from an empty disk",
     "if (!g->has_kept || (g->log.last == 0 && g->log.history != g->record.history)) return false; /* a new disk */", ""),
    ("shorter-log", "of two restarted members the shorter log serves",
     "group_lineage_compare(&g->log, &m->lineage) > 0)", "group_lineage_compare(&g->log, &m->lineage) < 0)",
     "group_lineage_compare(&g->log, &m->lineage) >= 0)", "group_lineage_compare(&g->log, &m->lineage) <= 0)"),
    ("no-history", "another history is not noticed",
     "if (a->history != b->history) return 0;", ""),
    ("old-term", "a returning primary goes on under the term of its earlier run",
     "static void lead_on(struct group *g) { struct group_record r = g->record; r.term++;",
     "static void lead_on(struct group *g) { struct group_record r = g->record;"),
    ("follows-any-term", "a standby answers for records of a term that is over",
     "|| !g->follows || g->term != term || g->followed_run != primary_run)", "|| !g->follows)"),
    ("unseals", "a sealed standby follows again although its transaction may still be made",
     "g->is_reading = g->must_read = false; if (revision <= g->revision) return;",
     "g->is_reading = g->must_read = false; if (g->role == GROUP_SEALED && revision == g->revision) "
     "{ g->role = GROUP_STANDBY; g->heard_ms = now_ms; } if (revision <= g->revision) return;"),
]

FOLDER = "server/cluster"
CONTROL_SCHEDULES = 1000
here = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def words(text):
    """Layout is clang-format's: what counts is what stands between the blanks."""
    return r"\s*".join(re.escape(w) for w in re.findall(r"\w+|[^\w\s]", text))


def sources(tree):
    return [os.path.join(tree, FOLDER, name) for name in sorted(os.listdir(os.path.join(tree, FOLDER))) if name.endswith(".c")]


def put_in(tree, name, old, new):
    hits = [(path, open(path).read()) for path in sources(tree)]
    hits = [(path, text, len(re.findall(words(old), text))) for path, text in hits]
    hits = [hit for hit in hits if hit[2]]
    if len(hits) != 1 or hits[0][2] != 1:
        sys.exit(f"tests/group-sim/mutants.py: {name}: stands in {FOLDER} {sum(h[2] for h in hits)} times, not once:\n{old}")
    path, text, _ = hits[0]
    with open(path, "w") as file:
        file.write(re.sub(words(old), lambda _: new, text))
    return path, text


def take_out(before):
    for path, text in reversed(before):
        with open(path, "w") as file:
            file.write(text)


def build(tree):
    done = subprocess.run(["make", "-s", "-j2", "WERROR=", "build/release/bin/group-sim"], cwd=tree, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(done.stdout)


def hunt(tree, n_schedules):
    """After how many schedules it is found (None: it is not), and the sentence."""
    run = subprocess.run(["build/release/bin/group-sim", "--seed", "1", "--schedules", str(n_schedules)], cwd=tree, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if run.returncode == 0:
        return None, ""
    found = re.search(r"^seed (\d+): (.*)", run.stdout, re.M)
    if not found:  # it has to be a broken promise, in a sentence; a crash of the simulation is none
        sys.exit(f"group-sim ended with {run.returncode} and no sentence: {run.stdout[-500:]}")
    return int(found.group(1)), found.group(2)


def copy_tree(folders):
    tree = tempfile.mkdtemp(prefix="group-sim-mutants-")
    for name in folders:
        if os.path.isdir(os.path.join(here, name)):
            shutil.copytree(os.path.join(here, name), os.path.join(tree, name), symlinks=True)
        else:
            shutil.copy2(os.path.join(here, name), tree)
    return tree


def check_texts():
    tree = copy_tree([FOLDER])
    for name, _, *edits in MUTANTS:
        take_out([put_in(tree, name, edits[i], edits[i + 1]) for i in range(0, len(edits), 2)])
    shutil.rmtree(tree)


def main():
    args = sys.argv[1:]
    n_schedules, names = 2000, []
    if args == ["--texts"]:
        return check_texts()
    while args:
        arg = args.pop(0)
        if arg == "--schedules":
            n_schedules = int(args.pop(0))
        else:
            names.append(arg)
    tree = copy_tree(["common", "proto", "server", "worker", "tests", "deploy", "Makefile"])
    build(tree)
    seed, said = hunt(tree, CONTROL_SCHEDULES)
    if seed is not None:
        sys.exit(f"mutants: unchanged, schedule {seed} fails: {said}")
    missed = []
    for name, what, *edits in MUTANTS:
        if names and name not in names:
            continue
        before = [put_in(tree, name, edits[i], edits[i + 1]) for i in range(0, len(edits), 2)]
        build(tree)
        since = time.time()
        seed, said = hunt(tree, n_schedules)
        take_out(before)
        if seed is None:
            missed.append(name)
        print(f"{name:26} {'NOT FOUND' if seed is None else 'schedule ' + str(seed):14} {time.time() - since:5.1f} s  {what}"
              f"{': ' if said else ''}{said[:150]}", flush=True)
    shutil.rmtree(tree)
    if missed:
        sys.exit(f"mutants: not found within {n_schedules} schedules: {', '.join(missed)}")


main()

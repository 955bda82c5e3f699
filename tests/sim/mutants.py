#!/usr/bin/env python3
"""Does the simulation find what it is there for? Each mutation is put into a copy of the tree, and schedules run until one fails.

    tests/sim/mutants.py [--schedules 5000] [--keep] [NAME ...]     5,000 is the limit of all; the aim for those of pairs is 2,000
    tests/sim/mutants.py --texts       only whether the texts are there, as make lint does

The unchanged code goes first: in it nothing is to be found.
A mutation whose text is not in exactly one file, once, ends this: the code has moved on, and so has the mutation to.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

# name, what it is, the text, what it becomes
MUTANTS = [
    ("early-reply", "a reply leaves before the log has its record",
     "    if (q->acknowledged < q->appended)\n        return ",
     "    if (q->acknowledged < q->appended && q->since_ns == 1)\n        return "),
    ("repeated-push", "a repeated push is applied again",
     "*ret_repeated = push->seq <= worker->last_seq;",
     "*ret_repeated = push->seq <= worker->last_seq && push->seq == 0;"),
    ("fenced-lease", "a worker that was fenced renews the lease of the one that took its place",
     "    if (w->state == WORKER_LIVE && w->incarnation == incarnation && !w->is_suspected) {\n        membership_hear(",
     "    if (w->state == WORKER_LIVE && !w->is_suspected) {\n        membership_hear("),
    ("dead-at-once", "a shard declares a silent worker dead without the others",
     "    if (suspicion_has_relay(w->job, r->lease_ms, now_ms)) {", "    if (suspicion_has_relay(w->job, r->lease_ms, now_ms) && now_ms == 0) {"),
    ("dead-when-deserted", "a shard that hears no worker of a job declares all of them dead",
     "    if (!r->is_alone && suspicion_is_deserted(w->job, r->lease_ms, now_ms))", "    if (!r->is_alone && now_ms == 0)"),
    ("one-witness", "one worker is believed about another one that the shard hears",
     "        n += other != w &&\n             (other",
     "        n += other != w && n == 0 &&\n             (other"),
    ("forgotten-witness", "a worker that has not come back since a restart is not waited for as a witness",
     "(w->relays || !w->is_known) && is_heard(w, lease_ms, now_ms);",
     "w->relays && is_heard(w, lease_ms, now_ms);"),
    ("needless-refusal", "a shard refuses a worker that comes back, as if it had been suspected",
     "    if (!is_fenced(w, join->incarnation))\n",
     "    if (!is_fenced(w, join->incarnation) && !(w->state == WORKER_LIVE && w->incarnation == join->incarnation && "
     "join->last_acked < w->last_seq))\n"),
    ("doubt-as-refusal", "a worker takes a shard that doubts a suspect for one that refuses it",
     "            item->stages[shard] = DOUBTED;", "            item->stages[shard] = ASKED;"),
    ("agreed-too-soon", "a worker tells a shard that all refuse a suspect before they do",
     "item->is_agreed || all_are(r, item, REFUSES);", "item->is_agreed || all_are(r, item, NOTHING);"),
    ("untold-suspect", "a worker hears of suspects, and tells no other shard",
     "        if (next == NOTHING)\n            continue;\n        item->stages[shard] = (uint8_t)next;",
     "        if (next != AGREED)\n            continue;\n        item->stages[shard] = (uint8_t)next;"),
    ("late-heartbeat", "pushes of a new connection go out before the heartbeat that tells of suspects",
     "    if (l->phase == PHASE_READY && l->config.joins && l->config.join.relays &&",
     "    if (l->phase == PHASE_READY && l->config.joins && l->config.join.relays && l->lease_ms == 0 &&"),
    ("untold-loss", "a join does not tell of the first push that is lost",
     "        w->lost_first = last_seq + 1;", "        w->lost_first = last_seq + 2;"),
    ("unsynced-part", "a checkpoint is committed before its files are synced",
     "        status = put_footer(f);\n    if (!status)\n        status = sync(f);",
     "        status = put_footer(f);"),
    ("commit-before-log", "a checkpoint is committed before the log is durable up to it",
     "    if (view.progress.durable >= through)\n        return 0;",
     "    if (view.progress.durable >= through || through)\n        return 0;",
     "    wal_thread_sync(l->thread, number);", "    (void)number;"),
    ("skipped-number", "on a new connection a push counts as applied that is not",
     "l->unacked.first->seq <= l->joined.last_applied)",
     "l->unacked.first->seq <= l->joined.last_applied + 1)"),
    ("early-pull", "a parked pull is answered one clock early",
     "    if (job_min_clock(worker->job) < shard_pull_needs(",
     "    if (job_min_clock(worker->job) + 1 < shard_pull_needs("),
    ("join-lowers-number", "a join forgets what was applied behind the last acknowledged push",
     "        if (join->last_acked <= w->last_seq)\n            return;",
     "        if (join->last_acked <= w->last_seq) {\n            w->last_seq = join->last_acked;\n"
     "            return;\n        }"),
    ("lost-held-push", "a checkpoint loses a push that waits for its clock",
     "            n++;\n    return n;\n}\n\nstatic void use_held(",
     "            n += h != q->first;\n    return n;\n}\n\nstatic void use_held(",
     "        for (struct bsp_held *h = q->first; h; h = h->next) {\n            size_t n_bytes;",
     "        for (struct bsp_held *h = q->first->next; h; h = h->next) {\n            size_t n_bytes;"),
    ("early-truncate", "the log is truncated one record too early",
     "k->firsts[task->index] + 1)", "k->firsts[task->index] + 2)"),
    ("unsynced-name", "the name of a new segment is not synced",
     "    if (!status && syncs(w)) {\n        status = files->sync_dir(files->state, w->config.dir);",
     "    if (!status && syncs(w)) {\n        status = 0;"),
    ("not-sent-again", "the client sends no push again on a new connection",
     "        send_push(l, p);\n    }\n    send_pulls(l, UINT64_MAX);",
     "        if (p->request_id == 0)\n            send_push(l, p);\n    }\n    send_pulls(l, UINT64_MAX);"),
    ("delta-without-gone-rows", "a delta lacks the rows that went",
     "        t->gone = s->tables[i]->gone;",
     "        bytes_deinit(&s->tables[i]->gone);"),
    ("lost-wake-up", "the log's thread is not woken for the first record that waits",
     "    wakes = t->is_idle && (was_empty || has_work(t));",
     "    wakes = t->is_idle && was_empty && has_work(t);"),
    ("lost-mail", "a mail that comes while others are run wakes nobody",
     "    if (!status)\n        wake(m);",
     "    if (!status && m->first == mail)\n        wake(m);"),
    ("empty-push-left", "a worker leaves before pushes without rows are acknowledged",
     "    bool fits = max_bytes ? s->unacked_bytes <= max_bytes : s->n_unacked == 0;",
     "    bool fits = s->unacked_bytes <= max_bytes;"),
    ("late-log-dirs", "the directories of a first start's logs are made one by one",
     "    for (uint32_t i = 0; i < n_shards && !status; i++) {\n        status = timeline_log_dir(",
     "    for (uint32_t i = n_shards; i < n_shards && !status; i++) {\n        status = timeline_log_dir("),
    ("trusted-file", "after a sync that failed the same file goes on",
     "    drop_file(w);\n    /* Nothing of the file's that was not synced is trusted: all that is kept goes to another. */\n"
     "    w->unwritten = w->first;\n    if (syncs(w))\n        w->progress.written = w->progress.durable;\n}",
     "}"),
    ("reshard-drops-row", "a change of layout drops a row of each table",
     "    for (uint64_t i = 0; i < n && !status; i++) {\n        const struct row *row = table_row(table->rows, i);",
     "    for (uint64_t i = 1; i < n && !status; i++) {\n        const struct row *row = table_row(table->rows, i);"),
    ("reshard-resets-count", "a change of layout forgets how many steps a table has taken",
     "    restore_counts(to, id, table->n_pushes, shard_version(from));",
     "    restore_counts(to, id, 0, shard_version(from));"),
    ("forgotten-steps", "the log forgets the step count that an assignment has set",
     "        s.steps = 0;\n    else\n        u64(p, &s.steps);",
     "        s.steps = 0;\n    else\n        u64(p, &s.steps);\n    if (p->mode == FIELD_IO_READS)\n        s.steps = 0;"),
    ("scan-ends-early", "a scan ends with the first full slice",
     "        if (last == UINT64_MAX)\n            return false;",
     "        if (last == UINT64_MAX || *ret_n == n_max)\n            return false;"),
    ("no-last-checkpoint", "an orderly stop takes no checkpoint and syncs nothing (durability none)",
     "    shard_threads_drain(n->shards, n->settings->shards);\n    if (n->checkpointer)",
     "    shard_threads_drain(n->shards, n->settings->shards);\n    if (n->checkpointer && (n->settings->durability != WAL_NONE || checkpointer_record(n->checkpointer)->busy_since_unix_ms))"),
    ("standby-early-ack", "a reply leaves before the standby has its last record",
     "return g->ack == TERMS_ACK_DISK ? g->durable : g->received;",
     "return (g->ack == TERMS_ACK_DISK ? g->durable : g->received) + 1;"),
    ("received-for-durable", "with --standby-ack disk what a standby has in memory counts",
     "return g->ack == TERMS_ACK_DISK ? g->durable : g->received;", "return g->received;"),
    ("claim-unsealed", "a standby claims without sealing: its shards go on fetching",
     "shard_follower_stop(shard_thread_follower(owner));", "(void)owner;"),
    ("rejoin-too-far", "a member that comes back keeps one record too many",
     "least(end_of(mine, i, s, mine_last[s]), end_of(theirs, j, s, their_last[s]));",
     "least(end_of(mine, i, s, mine_last[s]) + 1, end_of(theirs, j, s, their_last[s]));"),
    ("no-new-term", "a promotion begins no term",
     "terms_begin(&s->terms, s->term, s->keep); s->terms.role = TERMS_PRIMARY;",
     "s->term = terms_last(&s->terms); s->terms.role = TERMS_PRIMARY;"),
    ("pull-before-gone", "a pull is answered though the standby does not know of a worker that is gone",
     "(!worker || reply_queue_shows_gone(p->request->replies))", "true"),
    ("alone-at-once", "a primary goes on without its standby before the disk, or the claim, says so",
     "case SYNC_IN: return lost ? write_order(s, SYNC_LEAVING, SYNC_WRITE_NO, now_ms) : SYNC_NOTHING;",
     "case SYNC_IN: if (lost) enter(s, SYNC_OUT, now_ms); return lost ? SYNC_OPEN_GATES : SYNC_NOTHING;"),
    ("alone-before-claim", "a primary goes on without its standby though the claim is not made",
     "if (s->coordination && !in_sync) claim_sync(s);", "if (s->coordination && !in_sync) on_written(s);"),
    ("lost-is-made", "a claim whose answer is lost counts as one that was made",
     "uv_timer_start(&c->timer, on_retry, RETRY_MS, 0); return; }", "end_write(c, &exists); return; }"),
    ("unseen-claim", "a primary that the claim does not name goes on",
     "const struct claim *standby_server_claim_of_another(const struct standby_server *s) {",
     "const struct claim *standby_server_claim_of_another(const struct standby_server *s) { if (s->n_shards) return NULL;"),
    ("serves-unasked", "a primary that comes back serves at once, though its standby may have more",
     "s->was_in_sync = s->terms.history && s->terms.timeline == timeline && (s->terms.in_sync || s->terms.role == TERMS_STANDBY || names_partner);", "s->was_in_sync = false;",
     "s->was_in_sync = c->in_sync;", "s->was_in_sync = false;"),
    ("wrong-node", "a standby's log is of the node that its own settings name",
     ".node = n->map.node, .n_nodes = n->map.n_nodes, .n_shards", ".node = n->settings->node, .n_nodes = n->map.n_nodes, .n_shards"),
    ("old-term", "a primary that comes back goes on in its old term",
     "if (!s->has_begun) { standby_shards_next(s->shards, s->request.first);",
     "if (!s->has_begun && !s->terms.n) { standby_shards_next(s->shards, s->request.first);"),
    ("in-sync-too-early", "the standby is called in sync before it has what was acknowledged without it",
     "if (!shards[i].is_closed || shards[i].held < shards[i].closed_at) return false;", "if (!shards[i].is_closed) return false;"),
    ("in-sync-before-waiting", "the standby is called in sync before replies wait for it",
     "enter(s, SYNC_JOINING, now_ms); return SYNC_CLOSE_GATES;", "return write_order(s, SYNC_ENTERING, SYNC_WRITE_YES, now_ms);",
     'log_line_info("standby %.63s is in sync", s->name);', "standby_server_order(s, SHARD_STANDBY_CLOSE_GATE);"),
    ("never-parked", "a primary whose standby is silent goes on answering pulls",
     "return q->alone_until_ms == UINT64_MAX || clock_mono_ms() <= q->alone_until_ms;", "return q->alone_until_ms > 0;"),
    ("patience-from-receiving", "a primary counts from when it hears its standby, not from when it sent what that one answers",
     "atomic_store(&f->view.sent_ms, asked.heard_ms);", "atomic_store(&f->view.sent_ms, clock_mono_ms());"),
    ("sealed-pulls", "a primary that the claim does not name any more answers pulls that were parked",
     "if (f->gate.mode == GATE_SEALED) return 0; if (!f->standby.takes_over", "if (!f->standby.takes_over"),
    ("restarted-in-sync", "a standby that was restarted counts as in sync",
     "s->terms.in_sync = false; /* the primary may have gone on alone since this psd's end */",
     "s->was_in_sync = s->terms.in_sync; s->followed_term = terms_last(&s->terms);"),
    ("claimed-out-of-sync", "a standby takes over though the claim says that it is not in sync",
     "return c && c->in_sync && c->term == s->followed_term &&", "return c && c->term == s->followed_term &&"),
    ("claim-of-another-run", "a standby takes over by a claim that is about a run of it before",
     "return c && c->in_sync && c->term == s->followed_term &&", "return c && c->in_sync &&"),
    ("doubtful-takeover", "a standby takes over by a claim of a service that was restored",
     "strcmp(c->standby, s->config.own_address) == 0 && !coordination_is_doubtful(s->config.coordination);",
     "strcmp(c->standby, s->config.own_address) == 0;"),
    ("greater-term-passed-over", "a claim of a greater term does not end a primary",
     "return c->term > terms_last(&s->terms) ? c : NULL;", "return NULL;"),
    ("pull-before-told", "pulls go on beside a silent standby until the service has answered a claim that it is in sync",
     "if (!f->standby.takes_over || f->gate.mode != GATE_WAITS)",
     "if (!f->standby.takes_over || !f->is_in_sync || f->gate.mode != GATE_WAITS)"),
    ("set-row-decays-again", "a row that is set has a step of decay too many",
     "    row_decay_note(&entry->table, row, t);\n    row_touch(",
     "    row_decay_note(&entry->table, row, t ? t - 1 : 0);\n    row_touch("),
    ("keys-of-another-pull", "a push gets the keys of the newest pull, and not of the one that it names",
     "    set->pulls[i]->n_users++;\n    return set->pulls[i];",
     "    set->pulls[set->n - 1]->n_users++;\n    return set->pulls[set->n - 1];"),
    ("never-late", "with backup workers a push that comes after the first ones of its step counts as one of them",
     "    op->is_late = is_late(s, op);", "    op->is_late = is_late(s, op) && op->push->clock == UINT64_MAX;"),
    ("late-part-stays", "of a step that is late, the part that came in time stays held",
     "if (op->push->clock >= op->worker->clock) /* else what is held of it was in time */", "if (op->push->clock == UINT64_MAX)"),
    ("one-backup-too-many", "a step is complete without one worker more than there are backup workers",
     "return n && n <= job->n_backups ? most > clock : n_behind <= job->n_backups;",
     "return n && n <= job->n_backups ? most > clock : n_behind <= job->n_backups + (job->n_backups > 0);"),
]

FOLDERS = ("common", "proto", "server", "worker")


def sources(tree):
    for folder in FOLDERS:
        for where, _, names in os.walk(os.path.join(tree, folder)):
            for name in names:
                if name.endswith((".c", ".h")):
                    yield os.path.join(where, name)


def words(text):
    """Layout is clang-format's: what counts is what stands between the blanks."""
    return r"\s*".join(re.escape(w) for w in re.findall(r"\w+|[^\w\s]", text))


def put_in(tree, old, new):
    hits = []
    for path in sources(tree):
        with open(path) as file:
            text = file.read()
        n = len(re.findall(words(old), text))
        if n:
            hits.append((path, text, n))
    if len(hits) != 1 or hits[0][2] != 1:
        sys.exit(f"mutants: found {sum(h[2] for h in hits)} times, expected once:\n{old}")
    path, text, _ = hits[0]
    with open(path, "w") as file:
        file.write(re.sub(words(old), lambda _: new, text))
    return path, text


def build(tree):
    done = subprocess.run(["make", "-s", "-j2", "WERROR=", "build/release/bin/sim"], cwd=tree, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(done.stdout)


CONTROL_SCHEDULES = 500  # of the unchanged code, in which nothing is to be found


def hunt(tree, n_schedules):
    """After how many schedules it is found (None: it is not), and the sentence."""
    run = subprocess.run(["build/release/bin/sim", "--seed", "1", "--schedules", str(n_schedules)], cwd=tree, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if run.returncode == 0:
        return None, ""
    said = [line for line in run.stdout.splitlines() if line.startswith("seed ") and " nodes of " not in line]
    found = re.match(r"seed (\d+)", said[-1]) if said else None
    if not found:  # it has to be a broken promise, in a sentence; a crash of the simulation is none
        sys.exit(f"sim ended with {run.returncode} and no sentence: {run.stdout[-500:]}")
    return int(found.group(1)), said[-1].split(": ", 1)[-1]


def check_texts(here):
    """Each text that a mutant changes stands in the product once."""
    found = [open(path).read() for path in sources(here)]
    for name, _, *edits in MUTANTS:
        for old in edits[::2]:
            n = sum(len(re.findall(words(old), text)) for text in found)
            if n != 1:
                sys.exit(f"tests/sim/mutants.py: {name}: stands in the product {n} times, not once:\n{old}")


def main():
    args = sys.argv[1:]
    n_schedules, names, keeps = 5000, [], False
    here = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    if args == ["--texts"]:
        return check_texts(here)
    while args:
        arg = args.pop(0)
        if arg == "--schedules":
            n_schedules = int(args.pop(0))
        elif arg == "--keep":
            keeps = True
        else:
            names.append(arg)
    tree = tempfile.mkdtemp(prefix="sim-mutants-")
    for name in FOLDERS + ("tests", "deploy", "Makefile"):
        path = os.path.join(here, name)
        if os.path.isdir(path):
            shutil.copytree(path, os.path.join(tree, name), symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(path, tree)
    build(tree)
    seed, said = hunt(tree, CONTROL_SCHEDULES)
    if seed is not None:
        sys.exit(f"mutants: unchanged, schedule {seed} fails: {said}")
    missed = []
    for name, what, *edits in MUTANTS:
        if names and name not in names:
            continue
        before = [put_in(tree, edits[i], edits[i + 1]) for i in range(0, len(edits), 2)]
        build(tree)
        since = time.time()
        seed, said = hunt(tree, n_schedules)
        for path, text in reversed(before):
            with open(path, "w") as file:
                file.write(text)
        if seed is None:
            missed.append(name)
        print(f"{name:20} {'NOT FOUND' if seed is None else 'schedule ' + str(seed):14} {time.time() - since:5.0f} s  {what}"
              f"{': ' if said else ''}{said[:150]}", flush=True)
    if not keeps:
        shutil.rmtree(tree)
    if missed:
        sys.exit(f"mutants: not found within {n_schedules} schedules: {', '.join(missed)}")


main()

#!/bin/sh
# Who is the primary, who is in sync and what may be acknowledged never depends on the time of day, which jumps: the sources of
# that read the monotonic clock alone. What may stand there all the same is in `allowed`, with its reason.
cd "$(dirname "$0")/../.." || exit 2
# terms.c: a random number where the system has none. The others: when something was, or since when it lasts, for operators.
allowed='^server/replication/terms\.c:.*number = clock_unix_ms\(\)
^server/standby_steps\.c:.*since_unix_ms = clock_unix_ms\(\)
^server/coordination\.c:.*away_unix_ms = clock_unix_ms\(\)
^server/coordination\.c:.*takeover_unix_ms = clock_unix_ms\(\)
^server/standby_server_report\.c:.*(wait_since|dropped|gone)_unix_ms = clock_unix_ms\(\)'
files=$(ls server/replication/*.[ch] server/cluster/*.[ch] server/standby*.[ch] server/coordination.[ch] server/shard_follower.[ch] \
    server/peer_query.[ch] server/requests/fetch_handler.[ch] server/requests/reply_queue.[ch] worker/client/group_watch.[ch])
[ "$(echo "$files" | wc -l)" -gt 40 ] || { echo "the sources of standbys are not where they are looked for"; exit 1; }
# shellcheck disable=SC2086
grep -nE 'clock_unix_ms|CLOCK_REALTIME|gettimeofday|[^_a-z](time|gmtime|localtime)(_r)? ?\(|unix_ms *[<>]' $files |
    sed 's/:[0-9]*:/:/' | grep -vE "$allowed" | sed 's/$/   <- the time of day may jump: clock_mono_ms()/' | grep . && exit 1
exit 0

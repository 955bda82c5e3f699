/* What a push costs a shard with its log, against the same push without. */
#ifndef TESTS_BENCH_LOG_BENCH_PUSH_H
#define TESTS_BENCH_LOG_BENCH_PUSH_H

/* Prints one line for each codec. */
void bench_push(void);

#endif

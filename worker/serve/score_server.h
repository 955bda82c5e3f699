/*
 * The HTTP half of serve: POST /score and /v1/score, GET /model, /metrics, /healthz.
 *
 *     read      its body comes, on the HTTP thread
 *     queued    its connection is suspended; a scorer takes it
 *     scored    or its deadline has passed: the connection goes on, and the answer is sent
 *
 * Answers of /score are JSON: {"scores":[...],"clock":N,"age_s":S}, or {"error":"a sentence"}.
 */
#ifndef WORKER_SERVE_SCORE_SERVER_H
#define WORKER_SERVE_SCORE_SERVER_H

#include "worker/serve/scorer.h"

struct score_server;

/* All is borrowed until score_server_close(). The address is bound; nothing is answered before score_server_start(). */
int score_server_open(const struct settings *s, struct served_model *m,
                      struct score_server **ret, struct err *err) MUST_CHECK;

/* From here on requests are scored, and answered. */
int score_server_start(struct score_server *v, struct scorer *scorer, struct err *err)
    MUST_CHECK;

/* Every 20 ms or so, by one thread: answers requests whose deadline has passed, ends slow connections. */
void score_server_tick(struct score_server *v);

/* No connection is accepted from here on, and each ends behind its next answer. */
void score_server_drain(struct score_server *v);
/* True if no request is under way; *ret_connections: those that are open. */
bool score_server_is_idle(struct score_server *v, uint64_t *ret_connections);

/* Ends all connections. The scorer has been stopped. NULL is fine. */
void score_server_close(struct score_server *v);

const char *score_server_address(const struct score_server *v);

#endif

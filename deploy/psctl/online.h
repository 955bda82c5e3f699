/* Commands that a running psd answers. */
#ifndef DEPLOY_PSCTL_ONLINE_H
#define DEPLOY_PSCTL_ONLINE_H

#include "deploy/psctl/options.h"

/* These functions return the exit code: EXIT_FAILED if a node has not answered. */
int online_status(const struct options *o, const char *const *words, uint32_t n_words);
int online_tables(const struct options *o, const char *const *words, uint32_t n_words);
int online_workers(const struct options *o, const char *const *words, uint32_t n_words);
int online_jobs(const struct options *o, const char *const *words, uint32_t n_words);

/* psctl job NAME: one job whole, or its curve. */
int online_job(const struct options *o, const char *const *words, uint32_t n_words);

/* The waits on all nodes of the cluster. */
int online_why(const struct options *o, const char *const *words, uint32_t n_words);

/* psctl promote: of the named node. */
int online_promote(const struct options *o, const char *const *words, uint32_t n_words);

/* psctl switch [GROUP]: asks the group's primary, or a psd that names it. */
int online_switch(const struct options *o, const char *const *words, uint32_t n_words);

/* psctl row TABLE KEY: asks the named node, then the node that keeps the row. */
int online_row(const struct options *o, const char *const *words, uint32_t n_words);

/* psctl drop JOB, psctl set JOB NAME=VALUE,...: on all nodes, once all have confirmed that they can. */
int online_drop(const struct options *o, const char *const *words, uint32_t n_words);
int online_set(const struct options *o, const char *const *words, uint32_t n_words);

/*
 * psctl checkpoint: sends the command to all nodes of the cluster at once. It waits for a node as long as the node
 * reports progress; o->timeout_ms is the longest silence of a node. EXIT_FAILED if a node has failed; each failure is
 * printed.
 */
int online_checkpoint(const struct options *o, const char *const *words, uint32_t n_words);

#endif

/*
 * A standby that copies the newest restore point: FILE, one piece at a time, read by libuv's pool. The files are open
 * (standby_files.h) until its connection ends, or it has stopped in the middle of them for STANDBY_COPY_SILENCE_MS.
 */
#ifndef SERVER_STANDBY_COPY_H
#define SERVER_STANDBY_COPY_H

#include "server/net/connection.h"
#include "server/standby_files.h"

/* From an answer to the next FILE: the standby may sync a large file meanwhile, to a slow disk. */
#define STANDBY_COPY_SILENCE_MS 120000u

struct standby_copy;

struct standby_copy_config {
    uv_loop_t *loop;              /* borrowed */
    const struct file_ops *files; /* borrowed */
    /* Are any connected? Then copies are paced (server/replication/copy.h). */
    bool (*serves_clients)(void *owner);
    void *owner; /* borrowed */
};

struct standby_copy *standby_copy_new(const struct standby_copy_config *config);

/* The loop is to end: its timer closes. Once. */
void standby_copy_close(struct standby_copy *c) ON_MAIN;

/* No read is under way: the loop has ended. NULL is fine. */
void standby_copy_free(struct standby_copy *c);

/* Takes the files; those of before are closed. */
void standby_copy_begin(struct standby_copy *c, struct connection *connection,
                        struct standby_files *files) ON_MAIN;

/* A FILE. Anything but 0 ends the connection. */
int standby_copy_request(struct standby_copy *c, struct request *r) ON_MAIN MUST_CHECK;

/* The connection is gone; or (NULL) whichever copies does so no more. */
void standby_copy_drop(struct standby_copy *c, const struct connection *connection) ON_MAIN;

/* A few times a second. One that has all files loads them, and is waited for. */
void standby_copy_tick(struct standby_copy *c, uint64_t now_ms) ON_MAIN;

/* How long the one that copies has asked for nothing, in the middle of it; 0: nobody copies, or reads just now. */
uint64_t standby_copy_silent_ms(const struct standby_copy *c, uint64_t now_ms) ON_MAIN;

/* Who copies; NULL: nobody. */
const struct connection *standby_copy_of(const struct standby_copy *c);

#endif

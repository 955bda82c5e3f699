/*
 * What psd tells the service manager (sd_notify(3)): ready, stopping, alive. Nothing happens
 * where there is none.
 */
#ifndef SERVER_NOTIFY_H
#define SERVER_NOTIFY_H

#include "common/base.h"

void notify_ready(const char *status);
void notify_stopping(const char *status);

/* Still starting or stopping, and not stuck: asks for `more_ms` from now. */
void notify_extend(uint64_t more_ms);

/* Within how many ms the manager wants a sign of life; 0: it does not. */
uint64_t notify_watchdog_ms(void);
void notify_alive(void);

#endif

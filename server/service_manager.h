/* What psd tells the service manager (sd_notify(3)); nothing happens where there is none. */
#ifndef SERVER_SERVICE_MANAGER_H
#define SERVER_SERVICE_MANAGER_H

#include <stdint.h>

void service_manager_ready(const char *status);
void service_manager_stopping(const char *status);
void service_manager_status(const char *status);
void service_manager_alive(void);

/* Reports that the process still starts or stops, and is not stuck: it may take `more_ms` more. */
void service_manager_extend(uint64_t more_ms);

/* Within how many ms it wants a sign of life; 0: it does not. */
uint64_t service_manager_watchdog_ms(void);

#endif

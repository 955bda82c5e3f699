#include "server/service_manager.h"

#include <inttypes.h>
#include <systemd/sd-daemon.h>

void service_manager_ready(const char *status)
{
    (void)sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

void service_manager_stopping(const char *status)
{
    (void)sd_notifyf(0, "STOPPING=1\nSTATUS=%s", status);
}

void service_manager_status(const char *status)
{
    (void)sd_notifyf(0, "STATUS=%s", status);
}

void service_manager_alive(void)
{
    (void)sd_notify(0, "WATCHDOG=1");
}

void service_manager_extend(uint64_t more_ms)
{
    (void)sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%" PRIu64, more_ms * 1000);
}

uint64_t service_manager_watchdog_ms(void)
{
    uint64_t usec = 0;

    return sd_watchdog_enabled(0, &usec) > 0 ? usec / 1000 : 0;
}

#include "server/core/join_check.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/number.h"

int join_check_fields(const struct membership_join *join, struct err *err)
{
    size_t n_chars = strnlen(join->job, TABLE_SPEC_NAME_MAX);

    if (n_chars == 0 || n_chars == TABLE_SPEC_NAME_MAX)
        return err_set(err, -EINVAL, "a job's name has 1 to %u characters, not %s",
                       TABLE_SPEC_NAME_MAX - 1, n_chars ? "more" : "0");
    if (join->n_workers == 0 || join->n_workers > MEMBERSHIP_N_WORKERS_MAX)
        return err_set(err, -EINVAL, "job %s: %u workers; expected 1 to %u", join->job,
                       join->n_workers, MEMBERSHIP_N_WORKERS_MAX);
    if (join->rank >= join->n_workers)
        return err_set(err, -EINVAL, "job %s: rank %u of %u worker%s; ranks count from 0",
                       join->job, join->rank, join->n_workers, NUMBER_PLURAL(join->n_workers));
    if (join->mode != TABLE_SPEC_MODE_ASYNC && join->mode != TABLE_SPEC_MODE_SSP &&
        join->mode != TABLE_SPEC_MODE_BSP)
        return err_set(err, -EINVAL, "job %s: mode number %d; expected async, ssp or bsp",
                       join->job, (int)join->mode);
    if (join->n_backups && join->mode != TABLE_SPEC_MODE_BSP)
        return err_set(err, -EINVAL,
                       "job %s: %u backup workers in mode %s; they are for lock step (bsp)",
                       join->job, join->n_backups, table_spec_mode_name(join->mode));
    if (join->n_backups &&
        (join->n_backups >= join->n_workers || join->n_backups > MEMBERSHIP_N_BACKUPS_MAX))
        return err_set(
            err, -EINVAL,
            "job %s: %u backup workers of %u; expected fewer than all, and at most %u",
            join->job, join->n_backups, join->n_workers, MEMBERSHIP_N_BACKUPS_MAX);
    if (join->clock > MEMBERSHIP_CLOCK_END)
        return err_set(err, -EINVAL,
                       "job %s: rank %u says that it has finished %" PRIu64
                       " steps, which is out of range",
                       join->job, join->rank, join->clock);
    return 0;
}

int join_check_settings(const struct job *job, const struct membership_join *join,
                        struct err *err)
{
    if (job->n_workers != join->n_workers)
        return err_set(err, PS_EJOB, "job %s runs with %u worker%s, rank %u asked for %u",
                       job->name, job->n_workers, NUMBER_PLURAL(job->n_workers), join->rank,
                       join->n_workers);
    if (job->mode != join->mode)
        return err_set(err, PS_EJOB, "job %s runs in mode %s, rank %u asked for %s", job->name,
                       table_spec_mode_name(job->mode), join->rank,
                       table_spec_mode_name(join->mode));
    if (job->n_backups != join->n_backups)
        return err_set(err, PS_EJOB,
                       "job %s runs with %u backup worker%s, rank %u asked for %u", job->name,
                       job->n_backups, NUMBER_PLURAL(job->n_backups), join->rank,
                       join->n_backups);
    if (job->mode == TABLE_SPEC_MODE_SSP && job->bound != join->bound)
        return err_set(err, PS_EJOB, "job %s runs with staleness %u, rank %u asked for %u",
                       job->name, job->bound, join->rank, join->bound);
    return 0;
}

/* The checks of a join request that need no more than itself and the job (membership_join()). */
#ifndef SERVER_CORE_JOIN_CHECK_H
#define SERVER_CORE_JOIN_CHECK_H

#include "server/core/job.h"

/* Is each field in its range? -EINVAL with a sentence. */
int join_check_fields(const struct membership_join *join, struct err *err) MUST_CHECK;

/* Does the job run with these settings? PS_EJOB; err names the first that differs, NULL: nobody asks for it. */
int join_check_settings(const struct job *job, const struct membership_join *join,
                        struct err *err) MUST_CHECK;

#endif

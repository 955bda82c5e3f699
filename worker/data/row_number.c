#include "worker/data/row_number.h"

#include <math.h>
#include <string.h>

#include "worker/data/decimal.h"

bool row_number_is_missing(const struct row_plan *plan, struct row_span token)
{
    size_t len = strlen(plan->missing);

    return token.len == 0 ||
           (len > 0 && token.len == len && memcmp(token.at, plan->missing, len) == 0);
}

static float transform(const struct row_plan *plan, uint32_t i, double x)
{
    switch (plan->numeric_as) {
    case ROW_LOG1P:
        if (!(x > 0))
            return 0;
        if (x < ROW_LOG1P_TABLE && x == (double)(uint32_t)x)
            return plan->log1p_table[(uint32_t)x];
        return (float)log1p(x);
    case ROW_STANDARDISE:
        return (float)((x - (double)plan->mean[i]) / (double)plan->std[i]);
    case ROW_RAW:
        break;
    }
    return (float)x;
}

enum row_number row_number(const struct row_plan *plan, uint32_t i, struct row_span token,
                           float *ret)
{
    double x;

    *ret = plan->numeric_missing;
    if (row_number_is_missing(plan, token))
        return ROW_NUMBER_FINE;
    if (!decimal_parse(token.at, token.len, &x))
        return ROW_NUMBER_NOT_ONE;
    *ret = transform(plan, i, x);
    return isfinite(*ret) ? ROW_NUMBER_FINE : ROW_NUMBER_TOO_LARGE;
}

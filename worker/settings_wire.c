#include "worker/settings_wire.h"

#include <stdlib.h>
#include <string.h>

/* Numbers of auto in the lists of settings.c: all codecs stand before it, or those without
 * feedback, or those of one float. */
#define AUTO_OF_PUSH CODEC_ID_END
#define AUTO_OF_PULL ((int)CODEC_INT8 + 1)
#define AUTO_OF_WIDE ((int)CODEC_FP16 + 1)

bool settings_wire_codec(const struct settings *s, enum choice_slot slot, enum codec_id *ret)
{
    const struct {
        int value, automatic;
    } of[CHOICE_SLOT_END] = {
        [CHOICE_ROWS_PUSH] = { s->push_codec, AUTO_OF_PUSH },
        [CHOICE_ROWS_PULL] = { s->pull_codec, AUTO_OF_PULL },
        [CHOICE_WIDE_PUSH] = { s->wide_push_codec, AUTO_OF_WIDE },
        [CHOICE_WIDE_PULL] = { s->wide_pull_codec, AUTO_OF_WIDE },
        [CHOICE_DENSE_PUSH] = { s->dense_push_codec ? s->dense_push_codec - 1 : s->push_codec,
                                AUTO_OF_PUSH },
        [CHOICE_DENSE_PULL] = { s->dense_pull_codec, AUTO_OF_PULL },
    };
    bool is_auto = of[slot].value == of[slot].automatic;

    *ret = is_auto ? CODEC_FP32 : (enum codec_id)of[slot].value;
    return is_auto;
}

bool settings_wire_dense_is_exact(const struct settings *s)
{
    int mode = s->dense_mode ? s->dense_mode : s->mode + SPEC_MODE_ASYNC;

    return mode == SPEC_MODE_BSP;
}

int settings_wire_refresh(const struct settings *s, uint32_t *ret, struct err *err)
{
    char *end;
    unsigned long n = strtoul(s->dense_refresh, &end, 10);
    bool is_auto = strcmp(s->dense_refresh, "auto") == 0;

    if (!is_auto &&
        (end == s->dense_refresh || *end || n < 1 || n > 1000000 || s->dense_refresh[0] == '-'))
        return err_set(
            err, PS_ESETTING,
            "--dense-refresh: \"%.40s\" is neither auto nor a number of steps from 1",
            s->dense_refresh);
    if (!is_auto && n > 1 && settings_wire_dense_is_exact(s))
        return err_set(err, PS_ESETTING,
                       "--dense-refresh goes with --mode ssp or async: in lock step every step "
                       "sees all pushes of the one before");
    *ret = is_auto ? 0 : (uint32_t)n;
    return 0;
}

/* Codecs as the settings name them. */
#include "worker/settings.h"

/* The numbers of auto in the lists of codecs of settings.c: all codecs stand before it, or those without feedback, or
 * those of one float. */
#define AUTO_OF_PUSH CODEC_ID_END
#define AUTO_OF_PULL ((int)CODEC_INT8 + 1)
#define AUTO_OF_WIDE ((int)CODEC_FP16 + 1)

bool settings_codec(const struct settings *s, enum codec_policy_direction direction,
                    enum codec_id *ret)
{
    const struct {
        int value, automatic;
    } of[CODEC_POLICY_DIRECTIONS] = {
        [CODEC_POLICY_ROWS_PUSH] = { s->push_codec, AUTO_OF_PUSH },
        [CODEC_POLICY_ROWS_PULL] = { s->pull_codec, AUTO_OF_PULL },
        [CODEC_POLICY_WIDE_PUSH] = { s->wide_push_codec, AUTO_OF_WIDE },
        [CODEC_POLICY_WIDE_PULL] = { s->wide_pull_codec, AUTO_OF_WIDE },
        [CODEC_POLICY_DENSE_PUSH] = { s->dense_push_codec ? s->dense_push_codec - 1
                                                          : s->push_codec,
                                      AUTO_OF_PUSH },
        [CODEC_POLICY_DENSE_PULL] = { s->dense_pull_codec, AUTO_OF_PULL },
    };
    bool is_auto = of[direction].value == of[direction].automatic;

    *ret = is_auto ? CODEC_FP32 : (enum codec_id)of[direction].value;
    return is_auto;
}

bool settings_dense_is_exact(const struct settings *s)
{
    int mode = s->dense_mode ? s->dense_mode : s->mode + TABLE_SPEC_MODE_ASYNC;

    return mode == TABLE_SPEC_MODE_BSP;
}

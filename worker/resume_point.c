#include "worker/resume_point.h"

#include <string.h>

#include "common/hash.h"

#define VERSION 2u
#define BYTES_1 64u /* of version 1 */

static uint64_t mix_text(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = hash_mix2(h, (uint8_t)*text);
    return hash_mix2(h, 0);
}

uint64_t resume_point_settings(const struct settings *s)
{
    uint64_t h = hash_mix2(settings_seed(s, SEED_SHUFFLE), s->batch);

    h = hash_mix2(h, s->shuffle);
    h = hash_mix2(h, (uint64_t)s->share);
    h = hash_mix2(hash_mix2(h, s->workers), s->rank);
    h = hash_mix2(h, s->train_rows);
    h = hash_mix2(h, (uint64_t)((double)s->valid_fraction * 1e9));
    for (uint32_t i = 0; i < s->data.n; i++)
        h = mix_text(h, s->data.items[i]);
    return h;
}

void resume_point_write(const struct resume_point *b, uint8_t ret[RESUME_POINT_BYTES])
{
    const uint32_t version = VERSION, stop_set = b->stop_set;

    memset(ret, 0, RESUME_POINT_BYTES);
    memcpy(ret, &version, 4);
    memcpy(ret + 4, &b->epoch, 4);
    memcpy(ret + 8, &b->batch, 8);
    memcpy(ret + 16, &b->codec_steps, 8);
    memcpy(ret + 24, &b->settings, 8);
    memcpy(ret + 32, &b->best_score, 8);
    memcpy(ret + 40, &b->n_worse, 4);
    memcpy(ret + 44, &stop_set, 4);
    memcpy(ret + 48, &b->control_start, 4);
    memcpy(ret + 52, &b->n_flat, 4);
    memcpy(ret + 56, &b->steps, 8);
    memcpy(ret + 64, &b->validated, 8);
}

int resume_point_read(const uint8_t *bytes, size_t n_bytes, struct resume_point *ret)
{
    uint32_t version, stop_set;

    if (n_bytes != RESUME_POINT_BYTES && n_bytes != BYTES_1)
        return PS_ESPEC;
    memcpy(&version, bytes, 4);
    if (version != (n_bytes == BYTES_1 ? 1 : VERSION))
        return PS_ESPEC;
    memcpy(&ret->epoch, bytes + 4, 4);
    memcpy(&ret->batch, bytes + 8, 8);
    memcpy(&ret->codec_steps, bytes + 16, 8);
    memcpy(&ret->settings, bytes + 24, 8);
    memcpy(&ret->best_score, bytes + 32, 8);
    memcpy(&ret->n_worse, bytes + 40, 4);
    memcpy(&stop_set, bytes + 44, 4);
    memcpy(&ret->control_start, bytes + 48, 4);
    memcpy(&ret->n_flat, bytes + 52, 4);
    memcpy(&ret->steps, bytes + 56, 8);
    ret->validated = ret->steps;
    if (n_bytes == RESUME_POINT_BYTES)
        memcpy(&ret->validated, bytes + 64, 8);
    ret->stop_set = stop_set != 0;
    return 0;
}

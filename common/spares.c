#include "common/spares.h"

#include <assert.h>

void spares_init(struct spares *s, uint32_t n_min, size_t max_bytes)
{
    *s = (struct spares){ .n_min = n_min, .max_bytes = max_bytes };
    pthread_mutex_init(&s->lock, NULL);
}

void spares_deinit(struct spares *s)
{
    assert(!s->first);
    pthread_mutex_destroy(&s->lock);
}

struct spare *spares_take(struct spares *s)
{
    struct spare *spare;

    pthread_mutex_lock(&s->lock);
    spare = s->first;
    if (spare) {
        s->first = spare->next;
        s->n--;
        s->n_bytes -= spare->n_bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return spare;
}

bool spares_give(struct spares *s, struct spare *spare, size_t n_bytes)
{
    bool is_kept;

    pthread_mutex_lock(&s->lock);
    is_kept = s->n < s->n_min ||
              (s->max_bytes && n_bytes <= s->max_bytes && s->n_bytes <= s->max_bytes - n_bytes);
    if (is_kept) {
        *spare = (struct spare){ .next = s->first, .n_bytes = n_bytes };
        s->first = spare;
        s->n++;
        s->n_bytes += n_bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return is_kept;
}

#include "common/free_list.h"

#include <assert.h>

void shared_free_list_init(struct shared_free_list *s, uint32_t n_min, size_t max_bytes)
{
    *s = (struct shared_free_list){ .n_min = n_min, .max_bytes = max_bytes };
    pthread_mutex_init(&s->lock, NULL);
}

void shared_free_list_deinit(struct shared_free_list *s)
{
    assert(!s->first);
    pthread_mutex_destroy(&s->lock);
}

struct shared_free_link *shared_free_list_pop(struct shared_free_list *s)
{
    struct shared_free_link *link;

    pthread_mutex_lock(&s->lock);
    link = s->first;
    if (link) {
        s->first = link->next;
        s->n--;
        s->n_bytes -= link->n_bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return link;
}

bool shared_free_list_push(struct shared_free_list *s, struct shared_free_link *link,
                           size_t n_bytes)
{
    bool is_kept;

    pthread_mutex_lock(&s->lock);
    is_kept = s->n < s->n_min ||
              (s->max_bytes && n_bytes <= s->max_bytes && s->n_bytes <= s->max_bytes - n_bytes);
    if (is_kept) {
        *link = (struct shared_free_link){ .next = s->first, .n_bytes = n_bytes };
        s->first = link;
        s->n++;
        s->n_bytes += n_bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return is_kept;
}

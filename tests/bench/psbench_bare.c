#include "tests/bench/psbench_bare.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

struct write_req {
    uv_write_t uv;
    uint32_t prefix[2];
};

static void on_alloc(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *ret_buffer)
{
    (void)suggested_bytes;
    *ret_buffer = ((struct bare *)handle->data)->buffer;
}

/* How much of these bytes the message takes; its end calls the owner. */
static uint64_t take(struct bare *b, const uint8_t *bytes, uint64_t n_bytes)
{
    uint32_t sizes[2];
    uint64_t n;

    if (b->n_prefix < BARE_PREFIX_BYTES) {
        n = BARE_PREFIX_BYTES - b->n_prefix;
        n = n < n_bytes ? n : n_bytes;
        memcpy(b->prefix + b->n_prefix, bytes, n);
        b->n_prefix += (uint32_t)n;
        memcpy(sizes, b->prefix, sizeof sizes);
        if (b->n_prefix == BARE_PREFIX_BYTES)
            b->n_left = sizes[0] - BARE_PREFIX_BYTES;
    } else {
        n = b->n_left < n_bytes ? b->n_left : n_bytes;
        b->n_left -= n;
    }
    if (b->n_prefix == BARE_PREFIX_BYTES && !b->n_left) {
        memcpy(sizes, b->prefix, sizeof sizes);
        b->n_prefix = 0;
        b->message(b, sizes[1]);
    }
    return n;
}

static void on_read(uv_stream_t *stream, ssize_t n_bytes, const uv_buf_t *buffer)
{
    struct bare *b = stream->data;
    uint64_t at = 0;

    if (n_bytes < 0) {
        bare_close(b, n_bytes == UV_EOF ? 0 : (int)n_bytes);
        return;
    }
    while (at < (uint64_t)n_bytes)
        at += take(b, (const uint8_t *)buffer->base + at, (uint64_t)n_bytes - at);
}

int bare_start(struct bare *b)
{
    b->tcp.data = b;
    uv_tcp_nodelay(&b->tcp, 1);
    return uv_read_start((uv_stream_t *)&b->tcp, on_alloc, on_read);
}

static void on_written(uv_write_t *uv, int status)
{
    struct bare *b = uv->handle->data;

    free(CONTAINER_OF(uv, struct write_req, uv));
    if (status)
        bare_close(b, status);
}

void bare_send(struct bare *b, uint32_t n_bytes, uint32_t answer_bytes, const uint8_t *bytes)
{
    struct write_req *req;
    uint32_t prefix[2] = { n_bytes, answer_bytes };
    uv_buf_t parts[2] = { { (char *)prefix, sizeof prefix },
                          { (char *)bytes, n_bytes - sizeof prefix } };
    size_t done;
    int n, status;

    if (uv_is_closing((uv_handle_t *)&b->tcp))
        return;
    n = uv_try_write((uv_stream_t *)&b->tcp, parts, 2);
    done = n > 0 ? (size_t)n : 0;
    if (done == n_bytes)
        return;
    req = memory_alloc(sizeof *req);
    memcpy(req->prefix, prefix, sizeof prefix);
    if (done < sizeof prefix) {
        parts[0] = uv_buf_init((char *)req->prefix + done, (unsigned)(sizeof prefix - done));
        status = uv_write(&req->uv, (uv_stream_t *)&b->tcp, parts, 2, on_written);
    } else {
        parts[1].base += done - sizeof prefix;
        parts[1].len -= done - sizeof prefix;
        status = uv_write(&req->uv, (uv_stream_t *)&b->tcp, &parts[1], 1, on_written);
    }
    if (status) {
        free(req);
        bare_close(b, status);
    }
}

static void on_closed(uv_handle_t *handle)
{
    struct bare *b = handle->data;

    b->ended(b, b->why);
}

void bare_close(struct bare *b, int why)
{
    if (uv_is_closing((uv_handle_t *)&b->tcp))
        return;
    b->why = why;
    b->tcp.data = b;
    uv_close((uv_handle_t *)&b->tcp, on_closed);
}

#include "server/shard_call.h"

#include <assert.h>

static void on_answer(struct mail *mail, void *owner)
{
    struct shard_call *call = CONTAINER_OF(mail, struct shard_call, mail);

    (void)owner;
    enter_main();
    call->answered(call);
}

static void on_shard(struct mail *mail, void *owner)
{
    struct shard_call *call = CONTAINER_OF(mail, struct shard_call, mail);
    int status;

    enter_shard();
    call->err.status = call->ask(call, owner);
    call->mail.run = on_answer;
    status = mailbox_post(call->config.mailbox, &call->mail);
    assert(status == 0); /* the main thread's box outlives the shards */
}

int shard_call_start(struct shard_call *call, uint32_t shard)
{
    call->shard = shard;
    call->err = (struct err){ 0 };
    call->mail.run = on_shard;
    return shard_thread_post(call->config.shards[shard], &call->mail) == 0 ? 0 : PS_ESTOPPING;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ingle daemon --stream-fd N: the line protocol of dflash and its kin (docs/use/daemon.md).  Lines
 * "FILE.bin COUNT [samp=T,P,K,R[,SEED]]" in; token ids of 32 bits, little endian, and -1 at the end
 * of each line out.
 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/editor.h"
#include "cli/talk.h"

#include "base/mem.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_LINE = 1 << 16 };

struct stream {
    struct cli_talk talk;
    struct ingle_session *session;
    int fd;
    struct ingle_sampling usual; /* of a line without samp= */
};

/* What one line asks for. */
struct request {
    char *path;
    int64_t count;
    struct ingle_sampling sampling;
    int32_t *ids; /* [n_ids] */
    size_t n_ids;
};

static ingle_status put(const struct stream *s, int32_t token, struct err *err)
{
    unsigned char bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = (unsigned char)((uint32_t)token >> (8 * i));
    for (size_t done = 0; done < sizeof bytes;) {
        const ssize_t n = write(s->fd, bytes + done, sizeof bytes - done);
        if (n < 0 && errno != EINTR)
            return err_set(err, INGLE_IO, "descriptor %d: %s", s->fd, strerror(errno));
        done += n > 0 ? (size_t)n : 0;
    }
    return INGLE_OK;
}

/* "T,P,K,R[,SEED]": temperature, top-p, top-k, repetition penalty. */
static ingle_status read_samp(const char *text, struct ingle_sampling *out, struct err *err)
{
    static const struct {
        const char *what;
        double min, max;
        bool whole;
    } field[] = {{"temperature", 0, 1000, false},
                 {"top-p", 0, 1, false},
                 {"top-k", 0, 2147483647, true},
                 {"repetition penalty", 0.001, 1000, false},
                 {"seed", 0, 9007199254740992.0, true}};
    double v[5] = {0};
    size_t n = 0;
    for (const char *at = text; n < 5; n++) {
        char *end;
        v[n] = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(v[n] >= field[n].min && v[n] <= field[n].max) ||
            (field[n].whole && v[n] != floor(v[n])))
            return err_set(err, INGLE_ARG, "samp=%.80s: its %s is no number of %g to %.10g", text,
                           field[n].what, field[n].min, field[n].max);
        at = end + 1;
        if (!*end) {
            n++;
            break;
        }
        if (n == 4)
            return err_set(err, INGLE_ARG, "samp=%.80s has more than T,P,K,R,SEED", text);
    }
    if (n < 4)
        return err_set(err, INGLE_ARG, "samp=%.80s has %zu numbers, T,P,K,R[,SEED] are wanted",
                       text, n);
    out->temperature = (float)v[0];
    out->top_p = (float)v[1];
    out->top_k = (int32_t)v[2];
    out->repeat_penalty = (float)v[3];
    if (n == 5)
        out->seed = (uint64_t)v[4];
    return INGLE_OK;
}

static ingle_status read_request(const struct stream *s, char *line, struct request *a,
                                 struct err *err)
{
    static const char blank[] = " \t";
    char *rest, *end;
    struct ingle_model_info info;
    a->sampling = s->usual;
    a->path = strtok_r(line, blank, &rest);
    const char *count = strtok_r(NULL, blank, &rest);
    if (!a->path || !count)
        return err_set(err, INGLE_ARG, "'%.100s' is not FILE.bin COUNT [samp=T,P,K,R[,SEED]]",
                       line);
    a->count = strtoll(count, &end, 10);
    if (*end || a->count < 0 || a->count > 16777216)
        return err_set(err, INGLE_ARG, "'%.100s' is not a count of tokens after '%.100s'", count,
                       a->path);
    for (const char *more; (more = strtok_r(NULL, blank, &rest));) {
        if (strncmp(more, "samp=", 5) != 0)
            return err_set(err, INGLE_ARG, "'%.100s' is none of samp=T,P,K,R[,SEED]", more);
        if (read_samp(more + 5, &a->sampling, err))
            return err->status;
    }
    const ingle_status st = tool_ids_read_bin(a->path, &a->ids, &a->n_ids, err);
    ingle_model_info(s->talk.model, &info);
    for (size_t i = 0; !st && i < a->n_ids; i++)
        if (info.n_vocab && a->ids[i] >= info.n_vocab)
            return err_set(err, INGLE_ARG,
                           "%s: element %zu is token %d, outside the vocabulary of %lld", a->path,
                           i, a->ids[i], (long long)info.n_vocab);
    return st;
}

static ingle_status fail(struct err *err, const struct ingle_error *error)
{
    return err_set(err, error->status, "%s", error->text);
}

/* The token that ends an answer is written, too. */
static ingle_status generate(struct stream *s, const struct request *a,
                             struct ingle_sampler *sampler, struct err *err)
{
    struct ingle_session *session = s->session;
    struct ingle_engine_info info;
    struct ingle_error error;
    const float *logits;
    ingle_engine_info(s->talk.engine, &info);
    if (ingle_session_sync(session, a->ids, (int64_t)a->n_ids, NULL, &error) ||
        ingle_session_finish(session, &logits, &error))
        return fail(err, &error);
    for (int64_t i = 0;
         i < a->count && !cli_interrupts() && ingle_session_length(session) < info.n_ctx; i++) {
        struct ingle_token token;
        if (ingle_sample(sampler, logits, session, &token, &error))
            return fail(err, &error);
        if (put(s, token.id, err))
            return err->status;
        if (ingle_model_is_end(s->talk.model, token.id) && !s->talk.ignore_end)
            break;
        if (ingle_session_append(session, &token.id, 1, &error) ||
            (i + 1 < a->count && ingle_session_finish(session, &logits, &error)))
            return fail(err, &error);
    }
    if (ingle_session_remember(session, &error))
        return fail(err, &error);
    return INGLE_OK;
}

static ingle_status answer(struct stream *s, const struct request *a, struct err *err)
{
    struct ingle_sampler *sampler;
    struct ingle_error error;
    ingle_engine_resume(s->talk.engine);
    cli_interrupt_reset();
    if (ingle_sampler_open(&sampler, s->talk.engine, &a->sampling, &error))
        return fail(err, &error);
    const ingle_status st = generate(s, a, sampler, err);
    ingle_sampler_close(sampler);
    return st;
}

static int on_line(struct cli *c, void *arg, char *line, size_t n)
{
    struct stream *s = arg;
    struct request a = {0};
    struct err err;
    if (strspn(line, " \t") == n)
        return CLI_OK;
    ingle_status st = read_request(s, line, &a, &err);
    if (!st)
        st = answer(s, &a, &err);
    mem_free(a.ids);
    if (st)
        (void)cli_fail_err(c, &err);
    s->usual.seed++;
    struct err closed;
    return put(s, -1, &closed) ? CLI_FAILURE : CLI_OK; /* nobody reads */
}

int cli_stream(struct cli *c, int fd)
{
    struct stream s = {.fd = fd};
    if (fcntl(fd, F_GETFD) < 0)
        return cli_usage(c, "option '--stream-fd': descriptor %d is not open", fd);
    int rc = cli_talk_open(c, &s.talk);
    if (rc)
        return rc;
    s.usual = s.talk.sampling;
    if (!ingle_config_is_set(c->config, "temp"))
        s.usual.temperature = 0;
    struct ingle_error error;
    if (ingle_session_open(&s.session, s.talk.engine, &error)) {
        cli_talk_close(&s.talk);
        return cli_fail(c, &error);
    }
    puts("[daemon] ready");
    cli_push(c);
    rc = cli_lines(c, CLI_TEXT, MOST_LINE, on_line, &s);
    ingle_session_close(s.session);
    cli_talk_close(&s.talk);
    return rc;
}

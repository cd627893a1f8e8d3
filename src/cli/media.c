/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures and sounds of a conversation: each is opened once, and found again by its path. */
#include "cli/cli.h"
#include "cli/talk.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/write.h"
#include "server/medium.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MOST_BYTES = 25 << 20 };

static const struct cli_medium *find(const struct cli_talk *t, const char *path)
{
    for (size_t i = 0; i < t->n_media; i++)
        if (strcmp(t->medium[i].path, path) == 0)
            return &t->medium[i];
    return NULL;
}

static ingle_status refuse(struct ingle_error *error, const struct err *err)
{
    error->status = err->status;
    snprintf(error->text, sizeof error->text, "%s", err->msg);
    return err->status;
}

static ingle_status open_file(struct cli_talk *t, const char *path, enum ingle_media_kind kind,
                              struct ingle_medium **out, struct ingle_error *error)
{
    struct err err;
    char *bytes = NULL;
    size_t n = 0;
    if (file_slurp(path, MOST_BYTES, &bytes, &n, &err))
        return refuse(error, &err);
    const struct ingle_media in = {.kind = kind, .bytes = bytes, .n_bytes = n, .name = path};
    const ingle_status st = ingle_medium_open(out, t->engine, &in, error);
    mem_free(bytes);
    return st;
}

/* Keeps m under a path, or under its URL. */
static ingle_status keep(struct cli_talk *t, const char *path, struct ingle_medium *medium,
                         const struct cli_medium **out, struct ingle_error *error)
{
    struct err err;
    struct ingle_medium_info info;
    ingle_medium_info(medium, &info);
    const struct cli_medium m = {.path = mem_strdup(path),
                                 .medium = medium,
                                 .is_sound = info.kind == INGLE_MEDIA_AUDIO};
    if (!m.path || !mem_grow(&t->medium, &t->cap_media, t->n_media + 1, sizeof *t->medium)) {
        mem_free(m.path);
        ingle_medium_close(medium);
        (void)err_set(&err, INGLE_NOMEM, "%.60s: no memory for it", path);
        return refuse(error, &err);
    }
    t->medium[t->n_media] = m;
    *out = &t->medium[t->n_media++];
    return INGLE_OK;
}

ingle_status cli_media_add(struct cli_talk *t, const char *path, enum ingle_media_kind kind,
                           const struct cli_medium **out, struct ingle_error *error)
{
    struct ingle_medium *medium = NULL;
    *out = find(t, path);
    if (*out)
        return INGLE_OK;
    const ingle_status st = open_file(t, path, kind, &medium, error);
    return st ? st : keep(t, path, medium, out, error);
}

void cli_media_close(struct cli_talk *t)
{
    for (size_t i = 0; i < t->n_media; i++) {
        ingle_medium_close(t->medium[i].medium);
        mem_free(t->medium[i].path);
    }
    mem_free(t->medium);
    t->medium = NULL;
    t->n_media = t->cap_media = 0;
}

void cli_media_put(struct str *s, const struct cli_medium *m)
{
    write_open(s, '{');
    write_member(s, "type", m->is_sound ? "audio" : "image");
    write_member(s, "path", m->path);
    write_close(s, '}');
    str_addc(s, ',');
}

/* Of the next of --image and --audio as they were given; NULL: there is none. */
static const char *next_option(const struct ingle_config *c, size_t at[2],
                               enum ingle_media_kind *kind)
{
    const size_t image = ingle_config_place(c, "image", at[0]),
                 audio = ingle_config_place(c, "audio", at[1]);
    if (!image && !audio)
        return NULL;
    const bool is_image = image && (!audio || image < audio);
    *kind = is_image ? INGLE_MEDIA_IMAGE : INGLE_MEDIA_AUDIO;
    return is_image ? ingle_config_text(c, "image", at[0]++)
                    : ingle_config_text(c, "audio", at[1]++);
}

static int open_options(struct cli *c, struct cli_talk *t, struct str *parts,
                        struct ingle_medium **out, size_t *n)
{
    struct ingle_error error;
    enum ingle_media_kind kind;
    const struct cli_medium *m;
    const char *path;
    size_t at[2] = {0, 0};
    while ((path = next_option(c->config, at, &kind))) {
        if (at[0] + at[1] > CLI_MOST_MEDIA)
            return cli_usage(c, "more than %d pictures and sounds are given", CLI_MOST_MEDIA);
        if (cli_media_add(t, path, kind, &m, &error))
            return cli_fail(c, &error);
        if (parts)
            cli_media_put(parts, m);
        else
            out[(*n)++] = m->medium;
    }
    return CLI_OK;
}

int cli_media_options(struct cli *c, struct cli_talk *t, struct str *parts)
{
    return open_options(c, t, parts, NULL, NULL);
}

int cli_media_list(struct cli *c, struct cli_talk *t, struct ingle_medium *out[CLI_MOST_MEDIA],
                   size_t *n)
{
    *n = 0;
    return open_options(c, t, NULL, out, n);
}

/* The data: URL of a part as Chat Completions has it; NULL: there is none. */
static struct json_object *data_url_of(struct json_object *part)
{
    struct json_object *v = NULL, *inner = NULL;
    if (!json_object_is_type(part, json_type_object) ||
        !json_object_object_get_ex(part, "image_url", &v))
        return NULL;
    if (json_object_is_type(v, json_type_object) && json_object_object_get_ex(v, "url", &inner))
        v = inner;
    return json_object_is_type(v, json_type_string) &&
                   strncasecmp(json_object_get_string(v), "data:", 5) == 0
               ? v
               : NULL;
}

static ingle_status add_data_url(struct cli_talk *t, struct json_object *url,
                                 const struct cli_medium **out, struct ingle_error *error)
{
    const char *text = json_object_get_string(url);
    struct fault fault = {0};
    struct str bytes;
    struct ingle_medium *medium = NULL;
    *out = find(t, text);
    if (*out)
        return INGLE_OK;
    str_init(&bytes);
    (void)medium_add_data_url(
        &bytes, (struct view){text, (size_t)json_object_get_string_len(url)}, &fault, "",
        "picture");
    const struct ingle_media in = {.bytes = bytes.at, .n_bytes = bytes.n, .name = "a data: URL"};
    ingle_status st = fault.kind ? INGLE_ARG : !str_ok(&bytes) ? INGLE_NOMEM : INGLE_OK;
    error->status = st;
    if (st)
        snprintf(error->text, sizeof error->text, "%s",
                 fault.kind ? fault.message : "no memory for a picture");
    else
        st = ingle_medium_open(&medium, t->engine, &in, error);
    str_release(&bytes);
    return st ? st : keep(t, text, medium, out, error);
}

static ingle_status add_of_part(struct cli_talk *t, struct json_object *part,
                                struct ingle_medium **out, size_t *n, struct ingle_error *error)
{
    struct err err;
    struct json_object *path = NULL, *url = data_url_of(part);
    const struct cli_medium *m;
    if (!url && (!json_object_is_type(part, json_type_object) ||
                 !json_object_object_get_ex(part, "path", &path) ||
                 !json_object_is_type(path, json_type_string)))
        return INGLE_OK;
    if (*n == CLI_MOST_MEDIA) {
        (void)err_set(&err, INGLE_ARG, "the conversation has more than %d pictures and sounds",
                      CLI_MOST_MEDIA);
        return refuse(error, &err);
    }
    const ingle_status st =
        url ? add_data_url(t, url, &m, error)
            : cli_media_add(t, json_object_get_string(path), INGLE_MEDIA_ANY, &m, error);
    if (!st)
        out[(*n)++] = m->medium;
    return st;
}

ingle_status cli_media_of(struct cli_talk *t, struct json_object *messages,
                          struct ingle_medium *out[CLI_MOST_MEDIA], size_t *n,
                          struct ingle_error *error)
{
    ingle_status st = INGLE_OK;
    *n = 0;
    for (size_t i = 0; !st && i < json_object_array_length(messages); i++) {
        struct json_object *content = NULL;
        json_object_object_get_ex(json_object_array_get_idx(messages, i), "content", &content);
        for (size_t k = 0; !st && json_object_is_type(content, json_type_array) &&
                           k < json_object_array_length(content);
             k++)
            st = add_of_part(t, json_object_array_get_idx(content, k), out, n, error);
    }
    return st;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a request with a picture or a sound: base64, data: URLs, addresses, and marks in texts.
 */
#include "base/mem.h"
#include "server/medium.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_part(struct json_object *part, const struct answer_options *o)
{
    struct chat_request r;
    struct fault f = {0};
    const struct ingle_sampling none = {0};
    const struct medium_place at = {"message", "part", 0, 0, "messages[0].content[0]"};
    request_init(&r, &none);
    if (medium_is_shown(o, part)) {
        const int i = medium_read(&r, part, &at, o, &f);
        if ((i < 0) != (f.kind != FAULT_NONE) || strncmp(r.medium[0].name, "message 1, part 1", 17))
            abort();
        if (i >= 0 && !r.medium[i].url && !r.medium[i].bytes.n)
            abort();
    }
    request_release(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const type[] = {"image_url", "input_audio", "file"};
    const struct answer_options o = {.sees = true, .hears = true, .media_urls = "a.org,*.b.org"};
    struct str s;
    str_init(&s);
    medium_put_content(&s, (struct view){(const char *)data, n});
    for (size_t i = 0; i < 3; i++) {
        struct json_object *part = json_object_new_object(), *inner = json_object_new_object();
        json_object_object_add(inner,
                               i == 1   ? "data"
                               : i == 2 ? "file_data"
                                        : "url",
                               json_object_new_string_len((const char *)data, (int)n));
        json_object_object_add(part, "type", json_object_new_string(type[i]));
        json_object_object_add(part, type[i], inner);
        read_part(part, &o);
        json_object_put(part);
    }
    struct json_object *part = NULL; /* or the whole part */
    if (json_parse((const char *)data, n, NULL, &part, NULL) == INGLE_OK)
        read_part(part, &o);
    json_object_put(part);
    str_release(&s);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the gate lets through the parser must read, and nothing else; what it read and wrote
 * again must pass again. */
#include "base/json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data;
    struct json_object *o = NULL;
    struct err err = {0};
    const ingle_status gate = json_gate(text, n, NULL, &err);
    if (gate && (err.status != gate || !err.msg[0]))
        abort();
    if (json_parse(text, n, NULL, &o, NULL) != gate)
        abort();
    if (gate)
        return 0;
    const char *again = json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN);
    /* A number beyond double has become infinite, which JSON cannot say. */
    if (!strstr(again, "Infinity") && json_gate(again, strlen(again), NULL, NULL))
        abort();
    json_object_put(o);
    return 0;
}

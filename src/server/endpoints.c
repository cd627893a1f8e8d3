/* SPDX-License-Identifier: Apache-2.0
 *
 * The endpoints around the answers: health, models, tokens.
 */
#include "server/serve.h"

#include <string.h>

void endpoints_health(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    const enum serve_phase phase = serve_phase(s);
    struct str out;
    if (phase != SERVE_READY) {
        const struct serve_error e = {.status = 503, .retry_seconds = 2};
        serve_fail(x, rq, &e, phase == SERVE_LOADING ? "Loading model" : "the server is stopping");
        return;
    }
    str_init(&out);
    write_open(&out, '{');
    write_member(&out, "status", "ok");
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

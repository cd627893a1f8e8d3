/* SPDX-License-Identifier: Apache-2.0 */
/* request - what can be asked of a request without the scheduler. */
#include "run/scheduler.h"

int64_t ingle_request_number(const struct ingle_request *r)
{
    return r->number;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What an embedder does first: the public header alone, linked with the library alone. */
#include <ingle/ingle.h>

int main(void)
{
    return ingle_version()[0] ? 0 : 1;
}

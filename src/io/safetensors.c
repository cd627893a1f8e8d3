/* SPDX-License-Identifier: Apache-2.0 */
#include "io/inner.h"
ingle_status io_safetensors_open(struct io_file *f, struct err *err)
{
    return err_set(err, INGLE_UNSUP, "%s: safetensors", f->path);
}
ingle_status io_safetensors_open_dir(struct io_file *f, const char *dir, struct err *err)
{
    (void)dir;
    return io_safetensors_open(f, err);
}

/*
 * library - a driver's file, before it is opened.
 */
#ifndef INGLE_DEVICE_GPU_LIBRARY_H
#define INGLE_DEVICE_GPU_LIBRARY_H

#include "base/err.h"

/* A library that the loader will look for by its name: INGLE_FORMAT, its file ends too early.  One
 * that is not found, or is no library, is not looked at: the loader says what it is.  self: a
 * handle of the program, which knows where the loader looks; or NULL. */
MUST_CHECK ingle_status device_gpu_library_check(void *self, const char *name, struct err *err);
MUST_CHECK ingle_status device_gpu_library_whole(const char *path, struct err *err);

#endif

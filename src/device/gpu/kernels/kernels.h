/* kernels - the arguments of all kernels of kernels.inc. */
#ifndef INGLE_DEVICE_GPU_KERNELS_KERNELS_H
#define INGLE_DEVICE_GPU_KERNELS_KERNELS_H

#include "device/gpu/kernels/attend.h"
#include "device/gpu/kernels/pages.h"
#include "device/gpu/kernels/product.h"
#include "device/gpu/kernels/row.h"
#include "device/gpu/kernels/route.h"
#include "device/gpu/kernels/hc.h"
#include "device/gpu/kernels/compress.h"
#include "device/gpu/kernels/select.h"
#include "device/gpu/kernels/words.h"

#endif

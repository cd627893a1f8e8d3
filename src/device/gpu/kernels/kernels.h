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
#include "quant/quant.h"

/* product_args.book of a type. */
static inline int32_t product_book(uint32_t type)
{
    return type == QUANT_IQ2_XXS || type == QUANT_IQ2_XS || type == QUANT_IQ2_S ||
                   type == QUANT_IQ3_XXS || type == QUANT_IQ3_S
               ? PRODUCT_BOOK
               : 0;
}

#endif

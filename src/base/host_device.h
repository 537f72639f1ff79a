// EXPERTPLEX_HOST_DEVICE marks functions that compile for the GPU too. Nothing else in base does.
#pragma once

#if defined(__CUDACC__)
#define EXPERTPLEX_HOST_DEVICE __host__ __device__
#else
#define EXPERTPLEX_HOST_DEVICE
#endif

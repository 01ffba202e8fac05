# CUDA 13's toolkit with cuBLASLt and NCCL, all or nothing: CUDA_HEADERS (folders) and NCCL_LIBRARY, where they are. Older toolkits
# have other headers and no C++20 that the kernels could be compiled with.
find_package(CUDAToolkit 13 QUIET)
if(CUDAToolkit_FOUND AND TARGET CUDA::cublasLt)
    find_path(NCCL_HEADER nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
    if(NCCL_HEADER AND NCCL_LIBRARY)
        set(CUDA_HEADERS ${CUDAToolkit_INCLUDE_DIRS} ${NCCL_HEADER})
    endif()
endif()
include(${CMAKE_CURRENT_LIST_DIR}/cudnn.cmake)

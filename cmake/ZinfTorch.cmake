# Own imported targets for the CPU half of the torch wheel. find_package(Torch) would also link libtorch_cuda and
# then needs CUDA libraries at run time that a CPU machine lacks.
if(NOT ZINF_TORCH_DIR)
  file(GLOB _torch_candidates ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(NOT _torch_candidates)
    message(FATAL_ERROR "LibTorch not found: expected .venv/lib/python3*/site-packages/torch. "
                        "Run tools/setup.sh, or pass -DZINF_TORCH_DIR=<folder of the torch package>.")
  endif()
  list(GET _torch_candidates 0 ZINF_TORCH_DIR)
endif()
foreach(_library torch_cpu c10)
  if(NOT EXISTS ${ZINF_TORCH_DIR}/lib/lib${_library}.so)
    message(FATAL_ERROR "LibTorch in ${ZINF_TORCH_DIR} has no lib/lib${_library}.so")
  endif()
  add_library(zinf_ext_${_library} SHARED IMPORTED GLOBAL)
  set_target_properties(zinf_ext_${_library} PROPERTIES
    IMPORTED_LOCATION ${ZINF_TORCH_DIR}/lib/lib${_library}.so)
endforeach()
add_library(zinf_ext_torch INTERFACE)
target_include_directories(zinf_ext_torch SYSTEM INTERFACE
  ${ZINF_TORCH_DIR}/include ${ZINF_TORCH_DIR}/include/torch/csrc/api/include)
target_link_libraries(zinf_ext_torch INTERFACE zinf_ext_torch_cpu zinf_ext_c10)
# Without it at::parallel_for, which is inlined from LibTorch's headers, runs on one thread and says nothing. At run time the
# wheel's own libgomp is found first.
target_compile_options(zinf_ext_torch INTERFACE -fopenmp)
target_link_options(zinf_ext_torch INTERFACE -fopenmp)
# libtorch_cpu needs the CUDA run-time stubs of the wheel's neighbours, found through its own RPATH.
target_link_options(zinf_ext_torch INTERFACE -Wl,--allow-shlib-undefined -Wl,-rpath,${ZINF_TORCH_DIR}/lib)

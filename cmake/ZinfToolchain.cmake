# Compiler cache, fast linker, warnings and sanitizers: the same for every room.
find_program(ZINF_CCACHE ccache)
if(ZINF_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness that precompiled headers need to be cached: they are told apart by what they include.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${ZINF_CCACHE})
endif()
find_program(ZINF_LLD ld.lld)
if(ZINF_LLD)
  add_link_options(-fuse-ld=lld)
endif()
add_compile_options(-Wall -Wextra -Wno-unused-parameter)
if(ZINF_WERROR)
  add_compile_options(-Werror)
endif()
if(ZINF_SANITIZE)
  # GCC sees uninitialised memory where instrumented std::function and std::regex have none.
  add_compile_options(-Wno-maybe-uninitialized)
  add_compile_options(-fsanitize=${ZINF_SANITIZE} -fno-omit-frame-pointer -g1 -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ZINF_SANITIZE})
endif()

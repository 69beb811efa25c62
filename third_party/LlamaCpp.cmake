# Brings in the pinned llama.cpp and builds what we link of it: llama, llama-common, mtmd and ggml.
#
# fetch.py finds the source tree: a checkout named by LLAMASERVE_LLAMA_CPP_DIR, the copy in our source archive, the cache
# folder, or the package index. llama.cpp's own options choose the backends and are passed through untouched, e.g.
#   pip install . -C cmake.define.GGML_CUDA=ON        (GGML_METAL, GGML_VULKAN, GGML_NATIVE=OFF, ...)
#
# A release wheel that runs on every machine of a platform wants GGML_NATIVE=OFF, and, to choose its kernels at start,
# GGML_BACKEND_DL=ON with GGML_CPU_ALL_VARIANTS=ON. Those need BUILD_SHARED_LIBS=ON, and install() rules which put the
# shared libraries beside the extension module; none are here yet.

set(LLAMASERVE_LLAMA_CPP_DIR "" CACHE PATH "A llama.cpp checkout to build from, in place of the pinned one")

set(fetch_script "${CMAKE_CURRENT_LIST_DIR}/fetch.py")
set(lock_file "${CMAKE_CURRENT_LIST_DIR}/llama_cpp.lock")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${fetch_script}" "${lock_file}")

# Runs fetch.py with the arguments given and puts the path it prints into a variable.
function(llamaserve_fetch out)
    set(arguments ${ARGN})
    if(LLAMASERVE_LLAMA_CPP_DIR)
        list(APPEND arguments --local-dir "${LLAMASERVE_LLAMA_CPP_DIR}")
    endif()
    execute_process(
        COMMAND "${Python_EXECUTABLE}" "${fetch_script}" ${arguments}
        OUTPUT_VARIABLE directory OUTPUT_STRIP_TRAILING_WHITESPACE
        ERROR_VARIABLE messages
        RESULT_VARIABLE result)
    if(NOT result EQUAL 0)
        message(FATAL_ERROR "${messages}")
    endif()
    set(${out} "${directory}" PARENT_SCOPE)
endfunction()

function(llamaserve_lock_value key out)
    file(STRINGS "${lock_file}" line REGEX "^${key} = ")
    string(REGEX REPLACE "^${key} = " "" value "${line}")
    set(${out} "${value}" PARENT_SCOPE)
endfunction()

# A function, so that nothing set here for llama.cpp reaches our own targets.
function(llamaserve_add_llama_cpp directory)
    set(LLAMA_BUILD_COMMON ON)
    set(LLAMA_BUILD_MTMD ON)
    foreach(part TESTS TOOLS EXAMPLES SERVER APP UI)
        set(LLAMA_BUILD_${part} OFF)
    endforeach()
    set(LLAMA_USE_PREBUILT_UI OFF)
    set(LLAMA_OPENSSL OFF)

    # Without these llama.cpp and ggml ask git, and would get an answer about whatever repository surrounds the tree.
    if(NOT EXISTS "${directory}/.git")
        llamaserve_lock_value(commit LLAMA_BUILD_COMMIT)
        llamaserve_lock_value(build_number LLAMA_BUILD_NUMBER)
        set(GIT_EXE "")
    endif()

    if(NOT DEFINED BUILD_SHARED_LIBS)
        set(BUILD_SHARED_LIBS OFF)
    endif()
    set(CMAKE_POSITION_INDEPENDENT_CODE ON)
    if(NOT BUILD_SHARED_LIBS)
        # Another extension module in the process may carry another llama.cpp: keep ours to ourselves.
        set(CMAKE_C_VISIBILITY_PRESET hidden)
        set(CMAKE_CXX_VISIBILITY_PRESET hidden)
        set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
    endif()

    # EXCLUDE_FROM_ALL: only what we link is built, and nothing of llama.cpp is installed.
    # SYSTEM: its headers give no warnings in our code.
    add_subdirectory("${directory}" "${CMAKE_BINARY_DIR}/llama.cpp" EXCLUDE_FROM_ALL SYSTEM)
endfunction()

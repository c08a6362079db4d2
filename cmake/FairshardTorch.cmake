# Makes the imported targets fairshard::torch and fairshard::torch_python from the folders of a
# torch package, as pip installs it. torch's own TorchConfig.cmake is not used: for a CUDA build it
# insists on a CUDA toolkit and a GPU, and neither is needed to compile or to run on the CPU.
#
# Reads  FAIRSHARD_TORCH_DIR  the torch package's folder, or else
#        FAIRSHARD_PYTHON     a Python that can import torch (default: python3 on the PATH).
# Sets   FAIRSHARD_TORCH_DIR, FAIRSHARD_TORCH_VERSION, FAIRSHARD_TORCH_CUDA (empty for a CPU build).

set(FAIRSHARD_OLDEST_TORCH 2.11)

# pip's isolated builds hide the environment's packages behind PYTHONPATH: the second try of the
# two looks past it, so that `pip install .` builds against the torch that will be there at run time.
function(fairshard_locate_torch out)
  set(python "${FAIRSHARD_PYTHON}")
  if(NOT python)
    set(python "${Python_EXECUTABLE}")
  endif()
  if(NOT python)
    find_program(python NAMES python3 python NO_CACHE)
  endif()
  set(code "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')")
  foreach(env "" "--unset=PYTHONPATH")
    execute_process(
      COMMAND ${CMAKE_COMMAND} -E env ${env} ${python} -c "${code}"
      OUTPUT_VARIABLE dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE error)
    if(dir)
      break()
    endif()
  endforeach()
  if(NOT dir)
    message(FATAL_ERROR "fairshard: '${python}' has no torch. Install it there (pip install torch), or set "
      "FAIRSHARD_PYTHON to a Python that has it, or FAIRSHARD_TORCH_DIR to the torch package's folder. ${error}")
  endif()
  set(${out} "${dir}" PARENT_SCOPE)
endfunction()

if(NOT FAIRSHARD_TORCH_DIR)
  fairshard_locate_torch(FAIRSHARD_TORCH_DIR)
endif()

file(STRINGS "${FAIRSHARD_TORCH_DIR}/version.py" torch_version_lines REGEX "^(__version__|cuda)")
string(REGEX MATCH "__version__ = '([0-9.]+)" ignored "${torch_version_lines}")
set(FAIRSHARD_TORCH_VERSION "${CMAKE_MATCH_1}")
string(REGEX MATCH "cuda[^=]*= '([0-9.]+)'" ignored "${torch_version_lines}")
set(FAIRSHARD_TORCH_CUDA "${CMAKE_MATCH_1}")
if(FAIRSHARD_TORCH_VERSION VERSION_LESS FAIRSHARD_OLDEST_TORCH)
  message(FATAL_ERROR "fairshard: torch ${FAIRSHARD_TORCH_VERSION} in ${FAIRSHARD_TORCH_DIR} is too old, "
    "${FAIRSHARD_OLDEST_TORCH} or newer is needed (pip install 'torch>=${FAIRSHARD_OLDEST_TORCH}')")
endif()

if(NOT TARGET fairshard::torch)
  function(fairshard_torch_library name)
    add_library(fairshard::torch_lib_${name} SHARED IMPORTED GLOBAL)
    set_target_properties(fairshard::torch_lib_${name} PROPERTIES
      IMPORTED_LOCATION "${FAIRSHARD_TORCH_DIR}/lib/lib${name}.so" IMPORTED_NO_SONAME FALSE)
  endfunction()

  add_library(fairshard::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(fairshard::torch SYSTEM INTERFACE
    "${FAIRSHARD_TORCH_DIR}/include" "${FAIRSHARD_TORCH_DIR}/include/torch/csrc/api/include")
  target_compile_features(fairshard::torch INTERFACE cxx_std_20)
  # torch's libraries find the libraries that they need themselves, by run paths of their own.
  target_link_options(fairshard::torch INTERFACE "LINKER:--allow-shlib-undefined")
  # Some of torch's wheels export parts of an old C++ library (2.11's std::filesystem crashes in our
  # programs), so the system's comes first in the order of look-up. By its file name, because a
  # toolchain that finds only a static one would give us a second copy of its state.
  target_link_libraries(fairshard::torch INTERFACE "-l:libstdc++.so.6")
  set(torch_libraries torch torch_cpu c10)
  if(FAIRSHARD_TORCH_CUDA)
    list(APPEND torch_libraries torch_cuda c10_cuda)
  endif()
  foreach(name IN LISTS torch_libraries)
    fairshard_torch_library(${name})
    target_link_libraries(fairshard::torch INTERFACE fairshard::torch_lib_${name})
  endforeach()

  add_library(fairshard::torch_python INTERFACE IMPORTED GLOBAL)
  fairshard_torch_library(torch_python)
  target_link_libraries(fairshard::torch_python INTERFACE fairshard::torch fairshard::torch_lib_torch_python)
endif()

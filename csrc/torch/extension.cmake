# The extension rdmatx.torch._C, built for the PyTorch of the interpreter. PyTorch's own CMake package is not used: it asks
# for compilers and libraries (CUDA, MKL) of the machine that built PyTorch.

execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
          "import os, torch; print(os.path.dirname(torch.__file__), torch.__version__, int(torch.compiled_with_cxx11_abi()), sep=';')"
  OUTPUT_VARIABLE torch_found OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing)
if(torch_missing)
  message(FATAL_ERROR "RDMATX_TORCH is on, and ${Python_EXECUTABLE} cannot import torch. Install it first (and build "
                      "with pip install --no-build-isolation, which lets the build see it).")
endif()
list(GET torch_found 0 torch_root)
list(GET torch_found 1 torch_version)
list(GET torch_found 2 torch_cxx11_abi)

python_add_library(_torch MODULE WITH_SOABI ${RDMATX_TORCH_SOURCES})
target_include_directories(_torch PRIVATE csrc)
target_include_directories(_torch SYSTEM PRIVATE
  ${torch_root}/include ${torch_root}/include/torch/csrc/api/include)
target_compile_definitions(_torch PRIVATE _GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi})
target_link_directories(_torch PRIVATE ${torch_root}/lib)
# Found through the torch that is imported first, wherever it lies: no path of this machine is kept.
target_link_libraries(_torch PRIVATE rdmatx_core c10 torch_cpu torch_python)
set_target_properties(_torch PROPERTIES
  OUTPUT_NAME _C LIBRARY_OUTPUT_DIRECTORY torch INSTALL_RPATH "$ORIGIN/.." BUILD_WITH_INSTALL_RPATH ON)
file(WRITE ${CMAKE_BINARY_DIR}/torch/built_for.txt "${torch_version}\n")
install(TARGETS _torch LIBRARY DESTINATION torch COMPONENT torch)
install(FILES ${CMAKE_BINARY_DIR}/torch/built_for.txt DESTINATION torch COMPONENT torch)

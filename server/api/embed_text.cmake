# Write a C++ file with a function that returns a text:
#   cmake -DINPUT=a.json -DOUTPUT=a.cc -DHEADER=server/api/a.h -DFUNCTION=a_document -P embed_text.cmake
# -DNAMESPACE=centroid::worker: of another program.
if(NOT NAMESPACE)
  set(NAMESPACE centroid::server)
endif()
file(READ "${INPUT}" text)
file(WRITE "${OUTPUT}" "#include \"${HEADER}\"

namespace ${NAMESPACE} {

std::string_view ${FUNCTION}() {
  static constexpr std::string_view kText = R\"embedded(${text})embedded\";
  return kText;
}

}  // namespace ${NAMESPACE}
")

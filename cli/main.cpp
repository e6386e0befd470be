// The binary `tessera`.
#include "cli/app.hpp"

int main(int argc, char** argv) { return tessera::cli::run_app(argc, argv); }

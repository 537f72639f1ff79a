// What the operating system allows this process.
#pragma once

namespace expertplex::cli {

// Every stream needs a descriptor: raises the soft limit to the hard one. Never fails loudly.
void raise_open_file_limit();

}  // namespace expertplex::cli

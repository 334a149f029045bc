# Has the program `millrace` write what shells and man(1) read of it, below the folder `share`.
cmake_policy(VERSION 3.22)
set(completion_files bash bash-completion/completions/millrace zsh zsh/site-functions/_millrace
  fish fish/vendor_completions.d/millrace.fish)
while(completion_files)
  list(POP_FRONT completion_files shell file)
  get_filename_component(folder ${share}/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${millrace} completion ${shell} OUTPUT_FILE ${share}/${file} COMMAND_ERROR_IS_FATAL ANY)
endwhile()
execute_process(COMMAND ${millrace} help --man ${share}/man/man1 COMMAND_ERROR_IS_FATAL ANY)

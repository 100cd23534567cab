"""The kill loop: worker processes that are killed all the time, and nothing is lost or done twice (R2, R3, R45, R55).

    python -m worker.kill_loop --store sqlite --seconds 60 --runs 1000

A parent that has imported the package and opened nothing forks eight workers, kills one every half second and forks another
in its place. Each worker's own clock is wrong by up to ten minutes, the store's is not. After that time nobody is killed, the
workers finish what is left and drain, and the histories are held against what the workers wrote down while they lived.
"""

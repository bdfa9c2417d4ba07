# Sourced by the suite's tests/test_helper.tcl, in a copy of it: each start_server gets a new Tidemark behind a new proxy,
# which run.py starts when it is asked at the port in TIDEMARK_SUITE. So the suite runs in its external-server mode, yet each block
# begins with a fresh server, and blocks that start two of them do so.

proc suite_control {args} {
    set control [socket 127.0.0.1 $::env(TIDEMARK_SUITE)]
    fconfigure $control -encoding utf-8 -translation lf
    puts $control [join $args "\t"]
    flush $control
    set answer [gets $control]
    close $control
    if {[lindex $answer 0] eq "error"} {
        error "start_server: $answer"
    }
    return $answer
}

proc run_external_server_test {code overrides} {
    lassign [suite_control start {*}$overrides] port pid log
    set srv {}
    dict set srv "host" 127.0.0.1
    dict set srv "port" $port
    dict set srv "pid" $pid
    dict set srv "stdout" $log
    dict set srv "stderr" $log
    dict set srv "config" [dict merge [dict create port $port] $overrides]
    dict set srv "client" [redis 127.0.0.1 $port 0 $::tls]
    lappend ::servers $srv
    # As the suite does for its own servers: what escapes from a test is one failure, the rest of the block is lost.
    if {[catch {uplevel 2 $code} error]} {
        incr ::num_failed
        send_data_packet $::test_server_fd err [join [list "(outside of a test) $error" $::errorInfo] "\n"]
    }
    catch {[dict get [lindex $::servers end] "client"] close}
    set ::servers [lrange $::servers 0 end-1]
    suite_control stop $port
}

proc restart_server {level wait_ready rotate_logs {reconnect 1} {shutdown sigterm}} {
    set srv [lindex $::servers end+$level]
    lassign [suite_control restart [dict get $srv "port"]] port pid log
    dict set srv "pid" $pid
    lset ::servers end+$level $srv
    if {$reconnect} {
        reconnect $level
    }
}

# A test that fails leaves its connection in a transaction, logged in as some user, or with replies that nothing has read, or it leaves
# all clients paused: the next test gets a new connection, which is served.
rename test suite_test
proc test {args} {
    set failed $::num_failed
    uplevel 1 [list suite_test {*}$args]
    if {$::num_failed > $failed && [llength $::servers] > 0} {
        catch {suite_control unpause [srv port]}
        catch {
            # The old one stays open: a block may hold it by another name.
            set srv [lindex $::servers end]
            dict set srv "client" [redis [dict get $srv "host"] [dict get $srv "port"] 0 $::tls]
            lset ::servers end $srv
        }
    }
}

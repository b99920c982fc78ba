// CoreDNS with the plugins that a cluster's DNS needs. Its own main package has all plugins, among them those of five
// clouds, whose libraries take many minutes to build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func init() {
	dnsserver.Directives = []string{"errors", "ready", "cache", "kubernetes"}
}

func main() {
	coremain.Run()
}

// Loads a compose file with the library of Docker Compose, which validates it, and prints what it means as JSON.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	options, err := cli.NewProjectOptions(os.Args[1:], cli.WithOsEnv, cli.WithEnvFiles(), cli.WithDotEnv, cli.WithProfiles([]string{"*"}))
	if err != nil {
		fail(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		fail(err)
	}
	document, err := project.MarshalJSON()
	if err != nil {
		fail(err)
	}
	fmt.Println(string(document))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

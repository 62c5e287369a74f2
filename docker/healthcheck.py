"""Exit code 0 if the service in this container is ready to work, 1 if it is not."""

import http.client
import os
import sys

connection = http.client.HTTPConnection("127.0.0.1", int(os.environ["TILEWRIGHT_PORT"]), timeout=4)
try:
    connection.request("GET", "/health/ready")
    sys.exit(connection.getresponse().status != 200)
except OSError as error:
    sys.exit(f"the service does not answer: {error}")

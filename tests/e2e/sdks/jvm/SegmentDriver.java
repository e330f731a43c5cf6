import com.segment.analytics.Analytics;
import com.segment.analytics.Callback;
import com.segment.analytics.messages.Message;
import com.segment.analytics.messages.TrackMessage;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import okhttp3.OkHttpClient;

/**
 * Sends events with analytics-java, one client and one batch a name, all side by side: a batch waits 15 to 30 s
 * before it is sent again, and the next batch of its client waits behind it.
 *
 * <p>Usage: java -cp 'JARS/*' SegmentDriver.java HOST TIMEOUT_S EVENTS_PER_NAME NAME... Prints as JSON the names of
 * which the SDK gave up an event.
 */
public final class SegmentDriver {
  public static void main(String[] arguments) throws InterruptedException {
    String host = arguments[0];
    long timeoutSeconds = Long.parseLong(arguments[1]);
    int eventsPerName = Integer.parseInt(arguments[2]);
    List<String> names = Arrays.asList(arguments).subList(3, arguments.length);

    CountDownLatch undecided = new CountDownLatch(names.size() * eventsPerName);
    Set<String> givenUp = new ConcurrentSkipListSet<>();
    for (String name : names) {
      Analytics analytics = Analytics.builder("segment-java")
          .endpoint(host)
          .client(new OkHttpClient.Builder().readTimeout(timeoutSeconds, TimeUnit.SECONDS).build())
          .flushQueueSize(eventsPerName)
          .callback(new Decided(undecided, () -> givenUp.add(name)))
          .build();
      for (int number = 0; number < eventsPerName; number++) {
        analytics.enqueue(
            TrackMessage.builder(name).userId("user-" + number).properties(Map.of("n", number)));
      }
    }
    undecided.await();
    System.out.println(givenUp.stream().collect(Collectors.joining("\",\"", "[\"", "\"]")).replace("[\"\"]", "[]"));
    System.exit(0);
  }

  private record Decided(CountDownLatch undecided, Runnable onFailure) implements Callback {
    @Override
    public void success(Message message) {
      undecided.countDown();
    }

    @Override
    public void failure(Message message, Throwable error) {
      onFailure.run();
      undecided.countDown();
    }
  }
}
